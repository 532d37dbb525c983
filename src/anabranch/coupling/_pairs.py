"""What every coupling yields, and what it may ask of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from anabranch.data import Samples
from anabranch.errors import UsageError


class Source(Protocol):
    """The shared source distribution q0."""

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` points x0 (count, d)."""
        ...


@dataclass(frozen=True)
class Precise:
    """A source whose points are turned into another type of number."""

    source: Source
    dtype: torch.dtype

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        """The source's points, as numbers of that type."""
        return self.source.points(count, generator).to(self.dtype)


@dataclass(frozen=True)
class Pairs:
    """Aligned pairs (x0, x1), with where they came from.

    `index0` (n,) counts in the candidates that were drawn for this batch, `index1` (n,) in the holder's own points;
    `label` (n,) are the labels of x1, which travel with it.
    """

    x0: Tensor
    x1: Tensor
    index0: Tensor
    index1: Tensor
    label: Tensor

    def __len__(self) -> int:
        return len(self.x0)


class Coupling(Protocol):
    """Which x0 meets which x1?

    `draw` takes the holder's points, the source, how many pairs are wanted, the holder's own random numbers, and
    `shared` ones that all holders have alike in this round; most couplings need no shared ones. The training loop never
    knows which coupling it runs with.
    """

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs, on the device of the data."""
        ...


def batch(data: Samples, size: int, generator: torch.Generator) -> Tensor:
    """Indices of a batch, drawn independently and uniformly, as a sample of the holder's distribution."""
    if size < 1:
        raise UsageError(f"A batch of {size} pairs was asked for; it must hold at least one.")
    return torch.randint(len(data), (size,), generator=generator, device=generator.device)


def pair(data: Samples, candidates: Tensor, index0: Tensor, x1: Tensor, index1: Tensor) -> Pairs:
    """The pairs (candidates[index0], x1), where x1 are the holder's points of these indices."""
    return Pairs(candidates[index0].to(x1.device), x1, index0, index1, data.label[index1])
