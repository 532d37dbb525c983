"""Semi-discrete pairs: noises that were awarded to this holder, each with the point it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source
from anabranch.coupling._stream import Noises, points_together
from anabranch.data import Samples
from anabranch.errors import UsageError


@dataclass(frozen=True)
class SemiDiscrete:
    """Draws from a table of pairs (noise (m, d), index (m,) of the holder's point) made ahead by lookups.

    The table is a sample of the global optimal plan restricted to this holder's points, so a draw costs no more than an
    independent one, and draws of different holders, weighted by λ, follow the global plan. Noises may be known by
    their numbers alone: then only those of a batch are ever in memory.
    """

    noise: Tensor | Noises
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
        return semidiscrete_pairs([self], [data], size, [generator])[0]


def semidiscrete_pairs(
    tables: Sequence[SemiDiscrete], holders: Sequence[Samples], size: int, generators: Sequence[torch.Generator]
) -> list[Pairs]:
    """The pairs that each holder draws from its own table with its own generator; their noises are made in one pass."""
    if size < 1:
        raise UsageError(f"A batch of {size} pairs was asked for; it must hold at least one.")
    rows, found = [], []
    for table, data, generator in zip(tables, holders, generators, strict=True):
        row = torch.randint(len(table.index), (size,), generator=generator, device=generator.device)
        index = table.index[row.to(table.index.device)]
        rows.append(row)
        found.append((data.at(index, generator), index, data.label[index]))
    noises = points_together([table.noise for table in tables], rows)
    return [
        Pairs(x0.to(x1.device), x1, row, index, label)
        for x0, row, (x1, index, label) in zip(noises, rows, found, strict=True)
    ]
