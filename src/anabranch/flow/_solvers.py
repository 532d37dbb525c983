"""Follow a velocity field from t = 0 to t = 1, at a stated price in evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError, unknown

Velocity = Callable[[Tensor, Tensor], Tensor]
"""v(x, t): x (n, ...), t a single time; returns (n, ...)."""

_Step = Callable[[Velocity, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Flow:
    """Where the points arrived, and what it cost.

    x1 (n, ...); the number of velocity evaluations; the times (k,) of the steps' ends, from 0 to 1; and, if
    it was to be kept, the path (k, n, ...) at those times.
    """

    x1: Tensor
    evaluations: int
    path: Tensor | None
    times: Tensor


def integrate(
    velocity: Velocity,
    x0: Tensor,
    nfe: int | None,
    solver: str = "euler",
    keep_path: bool = False,
    *,
    atol: float = 1e-5,
    rtol: float = 1e-5,
) -> Flow:
    """Solve dx/dt = v(x, t), x(0) = x0 (n, ...), up to t = 1, without gradients.

    euler, midpoint, heun and rk4 take equal steps and use exactly `nfe` evaluations: 1, 2, 2 and 4 a step,
    with an error of order 1, 2, 2 and 4. dopri5 chooses its own steps to meet `atol` and `rtol`; `nfe` must
    be None there, and the path, if kept, is given at 101 evenly spaced times.

    >>> integrate(lambda x, t: 2 * t * torch.ones_like(x), torch.zeros(1), nfe=2, solver="midpoint").x1
    tensor([1.])
    """
    if not x0.is_floating_point():
        raise UsageError(f"Points that move need a floating-point dtype, not {x0.dtype}. Give x0.float().")
    if solver not in _SCHEMES and solver != "dopri5":
        raise unknown("solver", solver, [*_SCHEMES, "dopri5"])
    counted = _Counted(velocity)
    with torch.no_grad():
        if solver == "dopri5":
            return _adaptive(counted, x0, nfe, keep_path, atol, rtol)
        scheme = _SCHEMES[solver]
        return _fixed(counted, x0, _steps(nfe, solver, scheme.evaluations), scheme.step, keep_path)


class _Counted:
    """A velocity that counts its evaluations and refuses an answer that would silently broadcast."""

    def __init__(self, velocity: Velocity) -> None:
        self.velocity = velocity
        self.evaluations = 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        self.evaluations += 1
        answer = self.velocity(x, t)
        if answer.shape != x.shape:
            raise UsageError(
                f"The velocity at points of shape {tuple(x.shape)} has shape {tuple(answer.shape)}. "
                "A velocity field must answer in the shape of its points."
            )
        return answer


def _steps(nfe: int | None, solver: str, evaluations: int) -> int:
    if nfe is None or isinstance(nfe, bool) or not isinstance(nfe, int) or nfe < 1:
        raise UsageError(f"The solver {solver} cannot use nfe = {nfe!r}. Give a whole number of evaluations from 1.")
    if nfe % evaluations:
        above = (nfe // evaluations + 1) * evaluations
        raise UsageError(
            f"The solver {solver} takes {evaluations} evaluations a step, so nfe = {nfe} cannot be met. "
            f"Give nfe = {above}."
        )
    return nfe // evaluations


def _fixed(velocity: _Counted, x0: Tensor, steps: int, step: _Step, keep_path: bool) -> Flow:
    times = torch.linspace(0, 1, steps + 1, dtype=x0.dtype, device=x0.device)
    widths = times.diff()
    x = x0
    kept = [x0]
    for t, h in zip(times, widths, strict=False):  # the last time begins no step
        x = step(velocity, x, t, h)
        if keep_path:
            kept.append(x)
    return Flow(x, velocity.evaluations, torch.stack(kept) if keep_path else None, times)


def _adaptive(velocity: _Counted, x0: Tensor, nfe: int | None, keep_path: bool, atol: float, rtol: float) -> Flow:
    if nfe is not None:
        raise UsageError(
            f"dopri5 chooses its own number of evaluations, so nfe = {nfe!r} cannot be kept. Give nfe=None "
            "and set atol and rtol, or take a solver with fixed steps."
        )
    from torchdiffeq import odeint

    times = torch.linspace(0, 1, 101 if keep_path else 2, dtype=x0.dtype, device=x0.device)
    path = odeint(lambda t, x: velocity(x, t), x0, times, method="dopri5", atol=atol, rtol=rtol)
    return Flow(path[-1], velocity.evaluations, path if keep_path else None, times)


def _euler(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    return x + h * v(x, t)


def _midpoint(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    return x + h * v(x + h / 2 * v(x, t), t + h / 2)


def _heun(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    first = v(x, t)
    return x + h / 2 * (first + v(x + h * first, t + h))


def _rk4(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    first = v(x, t)
    second = v(x + h / 2 * first, t + h / 2)
    third = v(x + h / 2 * second, t + h / 2)
    fourth = v(x + h * third, t + h)
    return x + h / 6 * (first + 2 * second + 2 * third + fourth)


@dataclass(frozen=True)
class _Scheme:
    step: _Step
    evaluations: int


_SCHEMES = {
    "euler": _Scheme(_euler, 1),
    "midpoint": _Scheme(_midpoint, 2),
    "heun": _Scheme(_heun, 2),
    "rk4": _Scheme(_rk4, 4),
}
