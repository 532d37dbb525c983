"""Independent pairs: q0 ⊗ q1, the coupling of FFM-vanilla and I-CFM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, batch
from anabranch.data import Samples


@dataclass(frozen=True)
class Independent:
    """x0 and x1 drawn independently (FFM, eq. 5, Algorithm 1). Both marginals are exact; paths curve."""

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` independent pairs."""
        index = batch(data, size, generator)
        x1 = data.at(index, generator)
        x0 = source.points(size, generator).to(x1.device)
        return Pairs(x0, x1, torch.arange(size, device=x1.device), index, data.label[index])

    def draw_together(
        self, holders: Sequence[Samples], source: Source, size: int, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """The x0 and x1 that `draw` gives each holder with its generator, one below the other, in one pass for all."""
        chosen = [batch(data, size, generator) for data, generator in zip(holders, generators, strict=True)]
        drawn = zip(holders, chosen, generators, strict=True)
        x1 = torch.cat([data.at(index, generator) for data, index, generator in drawn])
        together = getattr(source, "points_together", None)
        if together is not None:
            x0 = together(size, generators)
        else:
            x0 = torch.cat([source.points(size, generator) for generator in generators])
        return x0.to(x1.device), x1
