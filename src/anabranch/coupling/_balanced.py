"""Balanced global OT: a shared potential, and every candidate used at most once by a holder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, batch, pair
from anabranch.coupling._potential import Potential
from anabranch.data import Samples
from anabranch.errors import UsageError
from anabranch.transport import assignment, half_squared_cost


@dataclass(frozen=True)
class BalancedPotential:
    """All holders see one pool of candidates; each assigns its batch into it one-to-one under c(x0, x1) − f(x0).

    A holder of weight λ with a batch of B looks at the first B/λ candidates of the pool, so that it takes the share λ
    of them; f rises where the pool is under-used and falls where holders compete, until together they use every
    candidate once. The source marginal is right from the start: whatever f is, no holder takes a candidate twice.
    """

    potential: Potential
    weight: float

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise UsageError(f"A weight of {self.weight} was given to a holder; it must lie in (0, 1].")

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs in which no candidate occurs twice."""
        index1 = batch(data, size, generator)
        x1 = data.at(index1, generator)
        x0 = self._pool(source, size, shared).to(x1.device)
        with torch.no_grad():
            index0 = self._assign(x0, x1, self.potential(x0))
        return pair(data, x0, index0, x1, index1)

    def dual(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Tensor:
        """mean f over the pool + mean (c − f) over the batch; summed over holders, f's slope is 1 − usage."""
        x1 = data.at(batch(data, size, generator), generator)
        x0 = self._pool(source, size, shared).to(x1.device)
        values = self.potential(x0)
        index0 = self._assign(x0, x1, values.detach())
        return values.mean() + ((x0[index0] - x1).square().sum(1) / 2 - values[index0]).mean()

    def _pool(self, source: Source, size: int, shared: torch.Generator) -> Tensor:
        return source.points(math.ceil(size / self.weight - 1e-9), shared)

    @staticmethod
    def _assign(x0: Tensor, x1: Tensor, values: Tensor) -> Tensor:
        return assignment(half_squared_cost(x1, x0) - values, contested=True)
