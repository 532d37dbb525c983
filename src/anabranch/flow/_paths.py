"""Conditional probability paths: where a pair (x0, x1) is at time t, and how fast it moves there.

Every path is Gaussian given its pair, p_t(x | x0, x1) = N(μ_t, σ_t² I), with t = 0 at the source and t = 1 at
the data. A point follows x_t = μ_t + σ_t ε with a fixed ε, so its velocity is u_t = μ_t' + σ_t' ε.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError, unknown


@dataclass(frozen=True)
class PathSample:
    """A point x_t (n, ...) on each pair's path, its velocity u_t (n, ...) and the times t (n,).

    For a flow that is told attributes, y (n, k) are the codes of x1, NULL where they are withheld.
    """

    x_t: Tensor
    u_t: Tensor
    t: Tensor
    y: Tensor | None = None

    def __getitem__(self, rows: slice) -> PathSample:
        return PathSample(*(part[rows] for part in self.parts))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All of it, in this order."""
        return (self.x_t, self.u_t, self.t) if self.y is None else (self.x_t, self.u_t, self.t, self.y)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a velocity is given: x_t, t, and y where there is one."""
        return (self.x_t, self.t) if self.y is None else (self.x_t, self.t, self.y)


def times_at(chances: Tensor, law: Sequence[float] = ()) -> Tensor:
    """Times (n,) of pairs from `chances` that are uniform: as they are, or by a `law` of two numbers, its mean and its
    deviation, so that log(t / (1 − t)) is normal with these. A larger mean is closer to the data.

    >>> times_at(torch.tensor([0.25, 0.5, 0.75]), (0.0, 1.0))
    tensor([0.3375, 0.5000, 0.6625])
    """
    if not law:
        return chances
    mean, deviation = law
    return torch.sigmoid(mean + deviation * torch.special.ndtri(chances))


@dataclass(frozen=True)
class Path(ABC):
    """A Gaussian path N(μ_t, σ_t² I) between the points of a pair; `sigma` is σ, its noise.

    A new path gives `mean`, `deviation` and `velocity`; `sample` follows from them.
    """

    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(
                f"The noise σ of a path is a standard deviation and cannot be {self.sigma}. Give 0 or more."
            )

    @property
    def deterministic(self) -> bool:
        """Whether σ_t is zero at every t, so that a pair and a time determine x_t."""
        return self.sigma == 0

    @abstractmethod
    def mean(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """μ_t (n, ...) for x0, x1 (n, ...) and t (n,)."""

    @abstractmethod
    def velocity(self, x0: Tensor, x1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """u_t(x_t | x0, x1) (n, ...): the velocity of the point of the pair's path that is at x_t."""

    def deviation(self, t: Tensor) -> Tensor:
        """σ_t (n,); unless a path says otherwise, the same σ at every t."""
        return torch.full_like(t, self.sigma)

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, generator: torch.Generator | None = None) -> PathSample:
        """One point of each pair's path at its own time: x0, x1 (n, ...), t (n,).

        A deterministic path draws no random numbers and needs no generator.
        """
        _check_pairs(x0, x1, t)
        x_t = self.mean(x0, x1, t)
        if not self.deterministic:
            x_t = x_t + _beside(self.deviation(t), x_t) * self._noise(x_t, generator)
        return PathSample(x_t, self.velocity(x0, x1, x_t, t), t)

    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            raise UsageError(
                f"{type(self).__name__}(sigma={self.sigma}) is a path with noise, and no generator was given "
                "to draw it from. Pass one, for example anabranch.seeds.generator(seed, 'path')."
            )
        # The generator's own device decides where the numbers come from: a CPU generator serves every device.
        noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
        return noise.to(like.device)


@dataclass(frozen=True)
class LinearPath(Path):
    """The straight line: μ_t = (1 − t) x0 + t x1, constant σ, u_t = x1 − x0.

    Lipman et al. 2023 and Liu et al. 2023 for σ = 0; Tong et al. 2024, "I-CFM" and, on optimal pairs,
    "OT-CFM".

    >>> sample = LinearPath().sample(torch.zeros(1, 2), torch.tensor([[4.0, 8.0]]), torch.tensor([0.25]))
    >>> sample.x_t, sample.u_t
    (tensor([[1., 2.]]), tensor([[4., 8.]]))
    """

    def mean(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        return torch.lerp(x0, x1, _beside(t, x0))  # one operation, and exact at both ends

    def velocity(self, x0: Tensor, x1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        return x1 - x0


@dataclass(frozen=True)
class BridgePath(Path):
    """The Brownian bridge of diffusion σ: μ_t = (1 − t) x0 + t x1, σ_t = σ √(t (1 − t)).

    u_t = (1 − 2t) / (2t (1 − t)) · (x_t − μ_t) + x1 − x0, with 1e-8 added to the denominator so that it
    stays finite at the ends. On pairs from the entropic plan with ε = 2σ² for the cost ‖x0 − x1‖² (σ² for
    half of it) the mixture of these bridges is the Schrödinger bridge: Tong et al. 2024, "SB-CFM".
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma == 0:
            raise UsageError("A bridge needs noise, and σ is 0. Give sigma > 0, or take the linear path.")

    def mean(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        return torch.lerp(x0, x1, _beside(t, x0))

    def deviation(self, t: Tensor) -> Tensor:
        return self.sigma * torch.sqrt(t * (1 - t))

    def velocity(self, x0: Tensor, x1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        rate = (1 - 2 * t) / (2 * t * (1 - t) + 1e-8)  # σ_t' / σ_t
        return _beside(rate, x_t) * (x_t - self.mean(x0, x1, t)) + x1 - x0


@dataclass(frozen=True)
class TargetPath(Path):
    """From standard normal noise to the data point alone: μ_t = t x1, σ_t = 1 − (1 − σ) t.

    u_t = (x1 − (1 − σ) x_t) / (1 − (1 − σ) t) (Lipman et al. 2023, eq. (20) and (21)). Only the shape of x0
    is used, the noise is drawn afresh: a coupling has no effect on this path, and the source is always N(0,
    I).
    """

    @property
    def deterministic(self) -> bool:
        return False

    def mean(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        return _beside(t, x1) * x1

    def deviation(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.sigma) * t

    def velocity(self, x0: Tensor, x1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        # σ_t is 0 at t = 1 when σ = 0; the smallest normal number keeps 0/0 from becoming NaN there.
        deviation = self.deviation(t).clamp_min(torch.finfo(t.dtype).tiny)
        return (x1 - (1 - self.sigma) * x_t) / _beside(deviation, x_t)

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, generator: torch.Generator | None = None) -> PathSample:
        """As `Path.sample`; u_t = x1 − (1 − σ) ε comes from the noise itself, without the division by σ_t."""
        _check_pairs(x0, x1, t)
        noise = self._noise(x1, generator)
        x_t = self.mean(x0, x1, t) + _beside(self.deviation(t), x1) * noise
        return PathSample(x_t, x1 - (1 - self.sigma) * noise, t)


@dataclass(frozen=True)
class VariancePreservingPath(Path):
    """A quarter turn: μ_t = cos(πt/2) x0 + sin(πt/2) x1, constant σ, u_t = π/2 (cos(πt/2) x1 − sin(πt/2) x0).

    When x0 and x1 are independent with equal covariance, μ_t keeps it at every t (Albergo and
    Vanden-Eijnden 2023).
    """

    def mean(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        angle = _beside(t, x0) * (math.pi / 2)
        return torch.cos(angle) * x0 + torch.sin(angle) * x1

    def velocity(self, x0: Tensor, x1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        angle = _beside(t, x0) * (math.pi / 2)
        return (math.pi / 2) * (torch.cos(angle) * x1 - torch.sin(angle) * x0)


_PATHS: dict[str, type[Path]] = {
    "linear": LinearPath,
    "bridge": BridgePath,
    "target": TargetPath,
    "variance-preserving": VariancePreservingPath,
}


def path(name: str, sigma: float = 0.0) -> Path:
    """The path of that name: linear, bridge, target or variance-preserving.

    >>> path("linear")
    LinearPath(sigma=0.0)
    """
    if name not in _PATHS:
        raise unknown("path", name, _PATHS)
    return _PATHS[name](sigma)


def _beside(t: Tensor, x: Tensor) -> Tensor:
    """t (n,) as (n, 1, ...) in the dtype of x (n, ...), to be multiplied with it."""
    return t.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


def _check_pairs(x0: Tensor, x1: Tensor, t: Tensor) -> None:
    if x0.shape != x1.shape or x0.dtype != x1.dtype:
        raise UsageError(
            f"A pair's points must be alike, but x0 is {tuple(x0.shape)} of {x0.dtype} and x1 is "
            f"{tuple(x1.shape)} of {x1.dtype}. Give both the same shape and dtype."
        )
    if t.dim() != 1 or t.shape[0] != x0.shape[0]:
        raise UsageError(
            f"Each of the {x0.shape[0]} pairs needs its own time, but t has shape {tuple(t.shape)}. "
            f"Give t of shape ({x0.shape[0]},)."
        )
