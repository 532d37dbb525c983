"""Independent pairs: q0 ⊗ q1, the coupling of FFM-vanilla and I-CFM."""

from __future__ import annotations

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
