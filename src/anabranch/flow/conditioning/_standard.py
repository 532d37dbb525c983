"""What is known of data before training: a network need only learn in what it differs from a Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from anabranch.errors import UsageError


@dataclass(frozen=True)
class Standard:
    """Data whose numbers have mean `center` and standard deviation `spread`, on a linear path from standard noise.

    If they were independent Gaussians, the velocity would be `drift`, and its error would have deviation `scale`. A
    network that adds scale · F(inputs) to the drift therefore sees and gives numbers of size one at every time, as the
    preconditioning of Karras et al. 2022 has it for diffusions; it learns in a fraction of the steps. `spread` 0 leaves
    all as it is.

    >>> import torch
    >>> Standard(center=-1.0, spread=0.0).active, Standard(center=-1.0, spread=0.5).active
    (False, True)
    >>> Standard(0.0, 1.0).drift(torch.ones(2, 1), torch.tensor([0.0, 1.0]))[:, 0]
    tensor([-1.,  1.])
    """

    center: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.center) or not 0 <= self.spread < math.inf:
            raise UsageError(
                f"Data cannot have center = {self.center} and spread = {self.spread}. Give their mean and standard"
                " deviation, or spread = 0 to leave them out."
            )

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self.spread > 0

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        """E[x1 − x0 | x_t = x] for Gaussian data: x (n, d), t (n,)."""
        slope = (t * self.spread**2 - (1 - t)) / self._variance(t)
        return self.center + slope[:, None] * (x - t[:, None] * self.center)

    def inputs(self, x: Tensor, t: Tensor) -> Tensor:
        """x_t with its mean and deviation taken off."""
        return (x - t[:, None] * self.center) / self._variance(t).sqrt()[:, None]

    def scale(self, t: Tensor) -> Tensor:
        """The deviation (n,) of x1 − x0 given x_t."""
        return self.spread / self._variance(t).sqrt()

    def _variance(self, t: Tensor) -> Tensor:
        return (1 - t) ** 2 + (t * self.spread) ** 2
