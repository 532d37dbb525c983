"""Balanced global OT: a shared potential, and every candidate used at most once by a holder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Source, batch
from anabranch.coupling._shared import Drawn, Potential, PotentialCoupling
from anabranch.data import Samples
from anabranch.errors import UsageError
from anabranch.transport import assignment, half_squared_cost


@dataclass(frozen=True)
class BalancedPotential(PotentialCoupling):
    """All holders see one pool of candidates; each assigns its batch into it one-to-one under c(x0, x1) − f(x0).

    A holder of weight λ with a batch of B looks at the first B/λ candidates of the pool, so that it takes the share λ
    of them; f rises where the pool is under-used and falls where holders compete, until together they use every
    candidate once, and the source marginal is right. Whatever f is, no holder takes a candidate twice.

    With `most`, a holder looks at no more than that many times B. While f is poor, the few out of many that are near to
    a holder's points are no fair sample of the source; with few to choose from they nearly are, whatever f is, and with
    B (`most` 1) they are: local OT. f still makes what all holders take together even.

    Its dual is mean f over the pool + mean (c − f) over the batch; summed over holders, f's slope is 1 − usage.
    """

    potential: Potential
    weight: float
    most: float = math.inf
    assigns = True  # a point that is twice in a batch makes a tie

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise UsageError(f"A weight of {self.weight} was given to a holder; it must lie in (0, 1].")
        if not self.most >= 1:
            raise UsageError(f"A pool of at most {self.most} batches was asked for; a batch needs one or more.")

    def reach(self, size: int) -> int:
        """B/λ, or as many as it may."""
        return math.ceil(size * min(1 / self.weight, self.most) - 1e-9)

    def drawn(self, data: Samples, source: Source, size: int, generator: torch.Generator, pool: Tensor) -> Drawn:
        """A fresh batch, and the beginning of the pool that all holders see."""
        index1 = batch(data, size, generator)
        return Drawn(pool[: self.reach(size)], data.at(index1, generator), index1)

    def take(self, drawn: Drawn, values: Tensor, generator: torch.Generator) -> Tensor:
        """One-to-one: no candidate occurs twice."""
        return _assigned(drawn, values)

    def transformed(self, drawn: Drawn, values: Tensor, taken: Tensor | None = None) -> Tensor:
        """c − f at the candidate of each x1."""
        index0 = _assigned(drawn, values.detach()) if taken is None else taken
        return (drawn.x0[index0] - drawn.x1).square().sum(1) / 2 - values[index0]


def _assigned(drawn: Drawn, values: Tensor) -> Tensor:
    return assignment(half_squared_cost(drawn.x1, drawn.x0) - values, contested=True)
