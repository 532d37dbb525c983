"""Samples with attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from anabranch.data.attributes._coverage import Coverage
from anabranch.data.attributes._space import AttributeSpace
from anabranch.errors import DataError


@dataclass(frozen=True)
class Attributed:
    """Points `x` (n, d), each with the `label` (n,) of its combination in `space`; images have a `shape`.

    >>> space = AttributeSpace.of({"digit": ["0", "1"], "color": ["red", "blue"]})
    >>> data = Attributed(torch.zeros(3, 2), torch.tensor([0, 3, 3]), space)
    >>> len(data), data[data.label == 3].codes.tolist()
    (3, [[1, 1], [1, 1]])
    """

    x: Tensor
    label: Tensor
    space: AttributeSpace
    shape: tuple[int, int, int] | None = None  # channels, height, width

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.label.shape != (len(self.x),) or self.label.dtype != torch.int64:
            raise DataError(
                f"Points of shape {tuple(self.x.shape)} with labels of shape {tuple(self.label.shape)} and type"
                f" {self.label.dtype} were given; points are rows, each with one whole number (int64)."
            )
        self.space.decode(self.label)  # refuses labels that name no combination
        if self.shape is not None and prod(self.shape) != self.x.shape[1]:
            raise DataError(
                f"Rows of {self.x.shape[1]} numbers are no images of {self.shape}; give the shape they have."
            )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor | slice) -> Attributed:
        return Attributed(self.x[index], self.label[index], self.space, self.shape)

    @property
    def codes(self) -> Tensor:
        """The attributes (n, k) of each point."""
        return self.space.decode(self.label)

    def coverage(self, partition: Mapping[str, Tensor]) -> Coverage:
        """Who has seen which combination, if the points are divided so."""
        return Coverage.of(self.space, {silo: self.label[index] for silo, index in partition.items()})
