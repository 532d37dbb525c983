"""Independent pairs: q0 ⊗ q1, the coupling of FFM-vanilla and I-CFM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
    ) -> tuple[Tensor, Tensor]:
        """The x0 and x1 that `draw` gives each holder with its generator, one below the other, in one pass for all."""
        chosen = [batch(data, size, generator) for data, generator in zip(holders, generators, strict=True)]
        together = getattr(source, "points_together", None)
        if together is not None:
            x0 = together(size, generators)
        else:
            x0 = torch.cat([source.points(size, generator) for generator in generators])
        x1 = torch.cat([data.x[index] for data, index in zip(holders, chosen, strict=True)])
        return x0.to(x1.device), x1
