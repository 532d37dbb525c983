"""Entropic plans: Sinkhorn's iteration on logarithms, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError


@dataclass(frozen=True)
class SinkhornResult:
    """The entropic plan and how it was reached.

    `plan` (n, m) = a ⊗ b · exp((f ⊕ g − C)/ε), the duals `f` (n,) and `g` (m,), `cost` = ⟨C, plan⟩ without
    the entropy, `error` = ‖plan 1 − a‖₁ at the last check, `iterations` made and whether they `converged`.
    """

    plan: Tensor
    f: Tensor
    g: Tensor
    cost: float
    error: float
    iterations: int
    converged: bool


@dataclass(frozen=True)
class Sinkhorn:
    """Solver of min ⟨C, π⟩ + ε KL(π ‖ a ⊗ b) over plans with marginals a and b.

    Alternates f = −ε log Σⱼ bⱼ exp((gⱼ − Cᵢⱼ)/ε) and the same for g, on logarithms, so that a small ε does
    not underflow (Peyré & Cuturi, Computational Optimal Transport, sec. 4.4). The error of the first
    marginal in ℓ₁, as a part of the total mass, is checked every `check_every` iterations against
    `tolerance`; the second marginal is exact by construction.

    >>> result = Sinkhorn(epsilon=0.01).solve(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> result.converged, result.plan.sum(0)
    (True, tensor([0.5000, 0.5000]))
    """

    epsilon: float
    iterations: int = 2000
    tolerance: float = 1e-4
    check_every: int = 10

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise UsageError(f"epsilon is {self.epsilon}; it must be positive (for no entropy at all use exact_plan).")
        if self.iterations < 1 or self.check_every < 1:
            raise UsageError(
                f"iterations is {self.iterations} and check_every {self.check_every}; both are at least 1."
            )
        if not self.tolerance >= 0:
            raise UsageError(f"tolerance is {self.tolerance}; it must not be negative.")

    def solve(self, cost: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> SinkhornResult:
        """The entropic plan for C (n, m), detached; equal weights where none are given."""
        if cost.ndim != 2 or 0 in cost.shape or not cost.is_floating_point():
            raise DataError(f"The cost is {cost.dtype} of shape {tuple(cost.shape)}; a real matrix (n, m) is needed.")
        if not bool(cost.isfinite().all()):
            raise DataError("The cost holds numbers that are not finite; check the points it was made from.")
        cost = cost.detach()
        log_a, log_b = _log_weights(a, cost, 0), _log_weights(b, cost, 1)
        weights_a, total = log_a.exp(), float(log_a.exp().sum())
        if not math.isclose(total, float(log_b.exp().sum()), rel_tol=1e-4):
            raise UsageError("a and b do not have the same total; a plan needs equal totals, scale one of them.")
        scaled = cost / -self.epsilon
        f, g = torch.zeros_like(log_a), torch.zeros_like(log_b)  # in units of ε
        error, done = math.inf, 0
        for done in range(1, self.iterations + 1):
            next_f = -torch.logsumexp(scaled + (g + log_b), 1)
            if done > 1 and (done - 1) % self.check_every == 0:
                error = float((weights_a * torch.expm1(f - next_f)).abs().nansum()) / total
                if error <= self.tolerance:
                    done -= 1
                    break
            f = next_f
            g = -torch.logsumexp(scaled + (f + log_a)[:, None], 0)
        else:
            next_f = -torch.logsumexp(scaled + (g + log_b), 1)
            error = float((weights_a * torch.expm1(f - next_f)).abs().nansum()) / total
        plan = (scaled + (f + log_a)[:, None] + (g + log_b)).exp()
        spent = float((plan * cost).sum())
        converged = error <= self.tolerance
        return SinkhornResult(plan, f * self.epsilon, g * self.epsilon, spent, error, done, converged)


def sinkhorn(
    cost: Tensor,
    epsilon: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    iterations: int = 2000,
    tolerance: float = 1e-4,
) -> SinkhornResult:
    """`Sinkhorn(epsilon, iterations, tolerance).solve(cost, a, b)` in one call."""
    return Sinkhorn(epsilon, iterations, tolerance).solve(cost, a, b)


def _log_weights(weights: Tensor | None, cost: Tensor, side: int) -> Tensor:
    """log a (n,) or log b (m,), in the cost's dtype and device."""
    size, name = cost.shape[side], "ab"[side]
    if weights is None:
        return cost.new_full((size,), -math.log(size))
    if weights.shape != (size,):
        raise UsageError(f"{name} has shape {tuple(weights.shape)}; it needs one weight for each of {size} points.")
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool((weights > 0).any()):
        raise UsageError(f"{name} must hold finite weights, none negative and not all zero.")
    return weights.detach().to(cost).log()
