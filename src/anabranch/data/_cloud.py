"""A source given as points instead of a formula."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError


@dataclass(frozen=True)
class Cloud:
    """The empirical distribution of given points x (n, d), as a source q0; drawn without replacement."""

    x: Tensor

    @property
    def dimension(self) -> int:
        """The dimension of its points."""
        return int(self.x.shape[1])

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` different points; more than there are is refused."""
        if count > len(self.x):
            raise UsageError(
                f"{count} source points were asked for at once, the pool holds {len(self.x)};"
                " ask for fewer candidates or give more source points."
            )
        order = torch.randperm(len(self.x), generator=generator, device=generator.device)
        return self.x[order[:count].to(self.x.device)]
