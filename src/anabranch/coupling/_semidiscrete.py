"""Semi-discrete pairs: noises that were awarded to this holder, each with the point it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, pair
from anabranch.data import Samples
from anabranch.errors import UsageError


@dataclass(frozen=True)
class SemiDiscrete:
    """Draws from a table of pairs (noise (m, d), index (m,) of the holder's point) made ahead by lookups.

    The table is a sample of the global optimal plan restricted to this holder's points, so a draw costs no more than an
    independent one, and draws of different holders, weighted by λ, follow the global plan.
    """

    noise: Tensor
    index: Tensor

    def __post_init__(self) -> None:
        if len(self.noise) == 0 or len(self.noise) != len(self.index):
            raise UsageError(
                f"A table of {len(self.noise)} noises and {len(self.index)} points cannot be drawn from;"
                " the holder must have won some noises. Assign more noises."
            )

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs of the table."""
        if size < 1:
            raise UsageError(f"A batch of {size} pairs was asked for; it must hold at least one.")
        row = torch.randint(len(self.noise), (size,), generator=generator, device=generator.device)
        index = self.index[row.to(self.index.device)]
        return pair(data, self.noise, row, data.at(index, generator), index)
