"""Velocity, score, noise and data: four ways to say the same of a Gaussian path from noise to data.

On x_t = α_t x_1 + σ_t ε, with ε ~ N(0, I) independent of x_1, each of them is an affine function of x_t and any other:

    v = α_t' E[x_1 | x_t] + σ_t' E[ε | x_t],   x_t = α_t E[x_1 | x_t] + σ_t E[ε | x_t],   ∇log p_t = −E[ε | x_t] / σ_t.

The same holds given attributes y, which is why velocities compose as scores do (DCFM, appendix A).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Schedule(ABC):
    """α_t and σ_t of p_t(x | x_1) = N(α_t x_1, σ_t² I): (0, 1) at t = 0 and (1, 0) at t = 1 (DCFM, eq. (25))."""

    @abstractmethod
    def at(self, t: Tensor) -> Coefficients:
        """α_t, σ_t and their derivatives at the times t, in the shape of t."""


@dataclass(frozen=True)
class Coefficients:
    """α_t, σ_t, α_t' and σ_t' at some times."""

    alpha: Tensor
    sigma: Tensor
    alpha_rate: Tensor
    sigma_rate: Tensor

    @property
    def determinant(self) -> Tensor:
        """α_t' σ_t − α_t σ_t', positive on every schedule that turns noise into data."""
        return self.alpha_rate * self.sigma - self.alpha * self.sigma_rate


@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """The straight line: α_t = t, σ_t = 1 − t. That of `LinearPath` from standard normal noise."""

    def at(self, t: Tensor) -> Coefficients:
        one = torch.ones_like(t)
        return Coefficients(t, 1 - t, one, -one)


@dataclass(frozen=True)
class VariancePreservingSchedule(Schedule):
    """A quarter turn: α_t = sin(πt/2), σ_t = cos(πt/2). That of `VariancePreservingPath` from standard normal noise."""

    def at(self, t: Tensor) -> Coefficients:
        angle = t * (math.pi / 2)
        sine, cosine = angle.sin(), angle.cos()
        return Coefficients(sine, cosine, cosine * (math.pi / 2), -sine * (math.pi / 2))


LINEAR = LinearSchedule()


def velocity_to_noise(velocity: Tensor, x: Tensor, t: Tensor, schedule: Schedule = LINEAR) -> Tensor:
    """E[ε | x_t] = (α_t' x − α_t v) / (α_t' σ_t − α_t σ_t'); x − t v on the straight line.

    Velocity and x (n, …), t (n,) or a single time; like x. Finite at every t.
    """
    at = schedule.at(_beside(t, x))
    return (at.alpha_rate * x - at.alpha * velocity) / at.determinant


def velocity_to_data(velocity: Tensor, x: Tensor, t: Tensor, schedule: Schedule = LINEAR) -> Tensor:
    """E[x_1 | x_t] = (σ_t v − σ_t' x) / (α_t' σ_t − α_t σ_t'); x + (1 − t) v on the straight line.

    Arguments as for the noise; finite at every t as well.
    """
    at = schedule.at(_beside(t, x))
    return (at.sigma * velocity - at.sigma_rate * x) / at.determinant


def velocity_to_score(velocity: Tensor, x: Tensor, t: Tensor, schedule: Schedule = LINEAR) -> Tensor:
    """∇log p_t(x) = (v − a_t x) / b_t, a_t = α_t'/α_t, b_t = (α_t' σ_t − α_t σ_t') σ_t/α_t (DCFM, eq. (27), (28)).

    Multiplied out, so that it is finite at t = 0, where it is −x. Not at t = 1, where the data need no density.
    """
    at = schedule.at(_beside(t, x))
    return (at.alpha * velocity - at.alpha_rate * x) / (at.sigma * at.determinant)


def score_to_velocity(score: Tensor, x: Tensor, t: Tensor, schedule: Schedule = LINEAR) -> Tensor:
    """v = a_t x + b_t ∇log p_t(x), a_t and b_t as in `velocity_to_score` (DCFM, eq. (6) and (26)).

    Not finite at t = 0, where the score is −x whatever the data, and does not tell the velocity.
    """
    at = schedule.at(_beside(t, x))
    return (at.alpha_rate * x + at.determinant * at.sigma * score) / at.alpha


def _beside(t: Tensor, x: Tensor) -> Tensor:
    """A single time, or t (n,) as (n, 1, …), in the dtype of x (n, …)."""
    return t.to(x.dtype) if t.dim() == 0 else t.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
