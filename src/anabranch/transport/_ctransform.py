"""The c-transform f^c(x1) = min over x0 of c(x0, x1) − f(x0), of a potential f on the source space.

Three ways to take the minimum: over candidates, by descent, and softly. Gradients follow the envelope
theorem: the argmin is held fixed, and the value's derivative is −1 in f at the argmin (hard) or −weights
(soft).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError


@dataclass(frozen=True)
class CTransform:
    """`value` (B,) = min_k c(x0_k, x1_b) − f_k, and `index` (B,), the k that reaches it."""

    value: Tensor
    index: Tensor


@dataclass(frozen=True)
class DescentResult:
    """`x0` (B, …), where the descent ended, detached; `value` (B,) = c(x0, x1) − f(x0) there."""

    value: Tensor
    x0: Tensor


@dataclass(frozen=True)
class SoftCTransform:
    """`value` (B,), and `log_weights` (K, B): logarithms of the shares of the candidates in x1_b, Σ_k = 1."""

    value: Tensor
    log_weights: Tensor


def c_transform(cost: Tensor, f_values: Tensor) -> CTransform:
    """f^c(x1_b) = min_k C_kb − f_k over K candidates, for C (K, B) and f (K,). FFM, eq. (9).

    Differentiable: −1 in f at the argmin, +1 in the cost there. For candidates too many for a matrix use
    `nearest(x1, x0, offset=f_values)`, which is the same thing in chunks.

    >>> c_transform(torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.tensor([0.0, 0.5]))
    CTransform(value=tensor([0.0000, 0.5000]), index=tensor([0, 1]))
    """
    _check(cost, f_values)
    with torch.no_grad():
        index = (cost - f_values[:, None]).argmin(0)
    return CTransform(cost.gather(0, index[None])[0] - f_values[index], index)


def c_transform_descent(
    f: Callable[[Tensor], Tensor], x1: Tensor, start: Tensor, steps: int = 5, rate: float = 0.5
) -> DescentResult:
    """f^c(x1) by `steps` of gradient descent on x0 ↦ ½‖x0 − x1‖² − f(x0), from `start` (B, …). FFM, App. C.2.

    The iteration is the plain one, and the value that of the last iterate (not the best one seen): it
    bounds f^c from above, closely only where f's curvature is small against 1/rate. The value is
    differentiable in f's parameters and in x1, with x0 held fixed. Parameters of f collect no gradient
    during the descent itself.

    >>> x1 = torch.tensor([[2.0]])
    >>> c_transform_descent(lambda x: -x.square().sum(1) / 2, x1, start=x1).value
    tensor([1.])
    """
    if steps < 0:
        raise UsageError(f"steps is {steps}; it must not be negative.")
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"rate is {rate}; it must be positive.")
    if start.shape != x1.shape:
        raise UsageError(f"start has shape {tuple(start.shape)} and x1 {tuple(x1.shape)}; each x1 needs one start.")
    x0, target = start.detach(), x1.detach()
    for _ in range(steps):
        x0 = x0 - rate * (x0 - target - _gradient(f, x0))
    value = (x0 - x1).square().flatten(1).sum(1) / 2 - _one_each(f(x0), x0)
    return DescentResult(value, x0)


def soft_c_transform(cost: Tensor, f_values: Tensor, epsilon: float) -> SoftCTransform:
    """f^{c,ε}(x1_b) = −ε log (1/K) Σ_k exp((f_k − C_kb)/ε), for C (K, B) and f (K,).

    At least the hard transform and at most ε log K above it. The weights are the softmax over k: the
    conditional plan of x0 given x1. Differentiable: −weights in f, +weights in the cost.

    >>> soft_c_transform(torch.tensor([[0.0], [0.0]]), torch.tensor([0.0, 0.0]), 0.1).log_weights.exp()
    tensor([[0.5000],
            [0.5000]])
    """
    _check(cost, f_values)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise UsageError(f"epsilon is {epsilon}; it must be positive (for the hard minimum use c_transform).")
    scores = (f_values[:, None] - cost) / epsilon
    total = torch.logsumexp(scores, 0)
    return SoftCTransform(-epsilon * (total - math.log(cost.shape[0])), scores - total)


def semidual(f_at_source: Tensor, transform_value: Tensor) -> Tensor:
    """Mean of f(x0) plus mean of f^c(x1): a lower bound of the cost, to be *maximised* in f. FFM, eq. (8)."""
    return f_at_source.mean() + transform_value.mean()


def _gradient(f: Callable[[Tensor], Tensor], x0: Tensor) -> Tensor:
    """∇f at each x0, leaving the gradients of f's parameters alone, whether or not gradients are on."""
    with torch.enable_grad():
        point = x0.detach().requires_grad_()
        values = _one_each(f(point), point)
        if not values.requires_grad:  # f does not depend on its argument, a constant
            return torch.zeros_like(x0)
        (gradient,) = torch.autograd.grad(values.sum(), point, allow_unused=True, materialize_grads=True)
    return gradient


def _one_each(values: Tensor, points: Tensor) -> Tensor:
    """f's answers as (B,); a trailing axis of one, as networks give, is taken off."""
    if values.numel() != points.shape[0]:
        raise UsageError(
            f"f gave shape {tuple(values.shape)} for {points.shape[0]} points; it must give one number each."
        )
    return values.reshape(-1)


def _check(cost: Tensor, f_values: Tensor) -> None:
    if cost.ndim != 2 or cost.shape[0] == 0 or f_values.shape != cost.shape[:1]:
        raise UsageError(
            f"The cost has shape {tuple(cost.shape)} and f {tuple(f_values.shape)}; "
            "(K, B) and (K,) are needed, with at least one candidate."
        )
