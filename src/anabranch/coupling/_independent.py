"""Independent pairs: q0 ⊗ q1, the coupling of FFM-vanilla and I-CFM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anabranch.coupling._pairs import Pairs, Source, batch, pair
from anabranch.data import Points


@dataclass(frozen=True)
class Independent:
    """x0 and x1 drawn independently (FFM, eq. 5, Algorithm 1). Both marginals are exact; paths curve."""

    def draw(
        self, data: Points, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` independent pairs."""
        index = batch(data, size, generator)
        return pair(data, source.points(size, generator), torch.arange(size), index)
