"""Global OT by a shared potential f on the source side: FFM-GOT and its entropic version.

Every holder uses the same f, so that couplings agree without any data being shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Source, batch
from anabranch.coupling._shared import Drawn, Potential, PotentialCoupling
from anabranch.data import Samples
from anabranch.errors import UsageError, unknown
from anabranch.transport import c_transform, half_squared_cost, soft_c_transform

TRANSFORMS = ("candidates", "descent")


@dataclass(frozen=True)
class GlobalPotential(PotentialCoupling):
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
        if self.transform not in TRANSFORMS:
            raise unknown("transform", self.transform, TRANSFORMS)

    @property
    def descent(self) -> tuple[int, float] | None:
        """Steps and rate, where f^c is found by descent."""
        return (self.steps, self.rate) if self.transform == "descent" else None

    def drawn(self, data: Samples, source: Source, size: int, generator: torch.Generator, pool: Tensor) -> Drawn:
        """A fresh batch, and candidates of its own."""
        return _fresh(data, source, size, self.candidates, generator)

    def take(self, drawn: Drawn, values: Tensor, generator: torch.Generator) -> Tensor:
        """The argmin, which several x1 may share."""
        return c_transform(half_squared_cost(drawn.x0, drawn.x1), values).index

    def transformed(self, drawn: Drawn, values: Tensor, taken: Tensor | None = None) -> Tensor:
        """f^c over the candidates."""
        return c_transform(half_squared_cost(drawn.x0, drawn.x1), values).value


@dataclass(frozen=True)
class EntropicPotential(PotentialCoupling):
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

    def drawn(self, data: Samples, source: Source, size: int, generator: torch.Generator, pool: Tensor) -> Drawn:
        """A fresh batch, and candidates of its own."""
        return _fresh(data, source, size, self.candidates, generator)

    def take(self, drawn: Drawn, values: Tensor, generator: torch.Generator) -> Tensor:
        """By inverse transform: the first candidate whose cumulated weight passes a uniform number."""
        soft = soft_c_transform(half_squared_cost(drawn.x0, drawn.x1), values, self.epsilon)
        edges = soft.log_weights.exp().cumsum(0)
        draws = torch.rand(len(drawn.x1), generator=generator, device=generator.device).to(edges) * edges[-1]
        return (edges < draws).sum(0).clamp_max(self.candidates - 1)

    def transformed(self, drawn: Drawn, values: Tensor, taken: Tensor | None = None) -> Tensor:
        """f^{c,ε} over the candidates."""
        return soft_c_transform(half_squared_cost(drawn.x0, drawn.x1), values, self.epsilon).value


def _fresh(data: Samples, source: Source, size: int, candidates: int, generator: torch.Generator) -> Drawn:
    index1 = batch(data, size, generator)
    x1 = data.at(index1, generator)
    return Drawn(source.points(candidates, generator).to(x1.device), x1, index1)


def check_candidates(count: int) -> None:
    """Refuses a pool without candidates."""
    if count < 1:
        raise UsageError(f"A pool of {count} candidates was asked for; it must hold at least one.")
