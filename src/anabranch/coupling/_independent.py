"""Independent pairs: q0 ⊗ q1, the coupling of FFM-vanilla and I-CFM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anabranch.coupling._pairs import Pairs, Source, batch
from anabranch.data import Points


@dataclass(frozen=True)
class Independent:
    """x0 and x1 drawn independently (FFM, eq. 5, Algorithm 1). Both marginals are exact; paths curve."""

    def draw(
        self, data: Points, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` independent pairs."""
        index = batch(data, size, generator)
        x1 = data.x[index]
        x0 = source.points(size, generator).to(x1.device)
        return Pairs(x0, x1, torch.arange(size), index, data.label[index])

    def draw_together(
        self, holders: Sequence[Points], source: Source, size: int, generators: Sequence[torch.Generator]
    ) -> list[Pairs]:
        """What `draw` gives each holder with its generator, with one pass through the source for all."""
        chosen = [batch(data, size, generator) for data, generator in zip(holders, generators, strict=True)]
        together = getattr(source, "points_together", None)
        if together is None:
            noise = [source.points(size, generator) for generator in generators]
        else:
            noise = together(size, generators)
        index0 = torch.arange(size)
        return [
            Pairs(x0.to(data.x.device), data.x[index], index0, index, data.label[index])
            for data, x0, index in zip(holders, noise, chosen, strict=True)
        ]
