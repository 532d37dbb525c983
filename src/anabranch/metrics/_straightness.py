"""How straight a flow runs, and how much more it moves than it had to."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.flow import Velocity, integrate
from anabranch.metrics._points import as_points


class _Watched:
    """A velocity that keeps running moments of what it answers, so that no path need be stored."""

    def __init__(self, velocity: Velocity, like: Tensor) -> None:
        self.velocity = velocity
        self.count = 0
        self.mean = torch.zeros_like(like)
        self.spread = torch.zeros_like(like)  # Σ_k (v_k − v̄)², by Welford's recurrence
        self.energy = torch.zeros_like(like)  # Σ_k v_k²

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        answer = self.velocity(x, t)
        self.count += 1
        before = answer - self.mean
        self.mean = self.mean + before / self.count
        self.spread = self.spread + before * (answer - self.mean)
        self.energy = self.energy + answer.square()
        return answer


def straightness(velocity: Velocity, x0: Tensor, steps: int = 100) -> float:
    """S = ∫₀¹ E‖(x1 − x0) − v(x_t, t)‖² dt along the flow's own Euler path from x0 (n, ...); 0 is straight.

    Liu et al. 2023, "Rectified Flow". The velocities of an Euler path average to x1 − x0, so S is
    the variance of v along each path; when it is 0, one Euler step reaches x1. It says nothing about
    where the path leads: a wrong flow can be straight.
    """
    watched = _watch(velocity, x0, steps)
    return _expected_total(watched.spread) / watched.count


def path_energy(velocity: Velocity, x0: Tensor, optimal_squared_distance: float, steps: int = 100) -> float:
    """|∫₀¹ E‖v(x_t, t)‖² dt − W2²| / W2² along the flow's own Euler path from x0 (n, ...).

    The normalised path energy; `optimal_squared_distance` is W2² between source and target; 0 is dynamic
    optimal transport (Tong et al. 2024).
    """
    if not 0 < optimal_squared_distance < float("inf"):
        raise UsageError(
            f"The path energy is measured against W2², which cannot be {optimal_squared_distance} here. "
            "Give a positive number."
        )
    watched = _watch(velocity, x0, steps)
    energy = _expected_total(watched.energy) / watched.count
    return abs(energy - optimal_squared_distance) / optimal_squared_distance


def _watch(velocity: Velocity, x0: Tensor, steps: int) -> _Watched:
    as_points(x0, "x0")
    watched = _Watched(velocity, x0)
    integrate(watched, x0, nfe=steps)
    return watched


def _expected_total(squares: Tensor) -> float:
    """The mean over points of the sum over coordinates, added up in float64."""
    return float(squares.flatten(1).sum(dim=1, dtype=torch.float64).mean())
