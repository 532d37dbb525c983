"""Global OT by a shared potential f on the source side: FFM-GOT and its entropic version.

Every holder uses the same f, so that couplings agree without any data being shared. `draw` pairs with f as it stands;
`dual` is the holder's part of the semi-dual objective, which the holders maximise together in f:

    max_f  E_{q0} f(x0) + Σ_i λ_i E_{q1^i} f^c(x1),      f^c(x1) = min_x0 c(x0, x1) − f(x0)          (FFM, eq. 9)

The paper's Algorithm 4 descends on this, which diverges; it is a maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, batch, pair
from anabranch.data import Samples
from anabranch.errors import UsageError, unknown
from anabranch.transport import c_transform, c_transform_descent, half_squared_cost, semidual, soft_c_transform

Potential = Callable[[Tensor], Tensor]


class PotentialCoupling(Protocol):
    """A coupling by a potential, which it can also help to improve."""

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs: ...

    def dual(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Tensor: ...


@dataclass(frozen=True)
class GlobalPotential:
    """Each x1 takes, among K candidates, the x0 with the least c(x0, x1) − f(x0) (FFM, Algorithm 5).

    For the dual, f^c is taken over the candidates too (`transform` "candidates") or by gradient descent on x0
    ("descent", with `steps` and `rate`; FFM, App. C.2). The argmin is hard and several x1 may take one x0, so that an
    under-trained f shifts the source marginal; `BalancedPotential` does not.
    """

    potential: Potential
    candidates: int = 256
    transform: str = "candidates"
    steps: int = 5
    rate: float = 0.5

    def __post_init__(self) -> None:
        check_candidates(self.candidates)
        if self.transform not in ("candidates", "descent"):
            raise unknown("transform", self.transform, ("candidates", "descent"))

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs; x1 is a fresh batch, x0 may repeat."""
        index1 = batch(data, size, generator)
        x1 = data.at(index1, generator)
        x0 = source.points(self.candidates, generator).to(x1.device)
        with torch.no_grad():
            index0 = c_transform(half_squared_cost(x0, x1), self.potential(x0)).index
        return pair(data, x0, index0, x1, index1)

    def dual(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Tensor:
        """mean f(x0) + mean f^c(x1) on a fresh batch; its gradient flows through f at x0 and at the argmin."""
        x1 = data.at(batch(data, size, generator), generator)
        x0 = source.points(self.candidates, generator).to(x1.device)
        if self.transform == "descent":
            start = source.points(len(x1), generator).to(x1.device)
            return semidual(
                self.potential(x0), c_transform_descent(self.potential, x1, start, self.steps, self.rate).value
            )
        values = self.potential(x0)
        return semidual(values, c_transform(half_squared_cost(x0, x1), values).value)


@dataclass(frozen=True)
class EntropicPotential:
    """Each x1 draws its x0 among K candidates with probability ∝ exp((f(x0) − c(x0, x1))/ε).

    With a `BridgePath` of variance ε this trains a Schrödinger bridge (FFM, Remark 2). The potential lives on the
    source side, as in GOT: the paper's target-side form, eq. (11), needs an integral over all holders' targets at once.
    """

    potential: Potential
    candidates: int = 256
    epsilon: float = 0.05

    def __post_init__(self) -> None:
        check_candidates(self.candidates)
        if not self.epsilon > 0:
            raise UsageError(f"The entropic coupling needs a positive epsilon; {self.epsilon} was given.")

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs; x1 is a fresh batch, x0 may repeat."""
        index1 = batch(data, size, generator)
        x1 = data.at(index1, generator)
        x0 = source.points(self.candidates, generator).to(x1.device)
        with torch.no_grad():
            soft = soft_c_transform(half_squared_cost(x0, x1), self.potential(x0), self.epsilon)
            # Inverse transform: the first candidate whose cumulated weight passes a uniform number.
            edges = soft.log_weights.exp().cumsum(0)
            draws = torch.rand(size, generator=generator, device=generator.device).to(edges) * edges[-1]
            index0 = (edges < draws).sum(0).clamp_max(self.candidates - 1)
        return pair(data, x0, index0, x1, index1)

    def dual(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Tensor:
        """mean f(x0) + mean f^{c,ε}(x1) on a fresh batch."""
        x1 = data.at(batch(data, size, generator), generator)
        x0 = source.points(self.candidates, generator).to(x1.device)
        values = self.potential(x0)
        return semidual(values, soft_c_transform(half_squared_cost(x0, x1), values, self.epsilon).value)


def check_candidates(count: int) -> None:
    """Refuses a pool without candidates."""
    if count < 1:
        raise UsageError(f"A pool of {count} candidates was asked for; it must hold at least one.")
