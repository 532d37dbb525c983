"""Images as points: bytes where they are used, numbers when they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from anabranch.data._crops import resized_crops
from anabranch.errors import DataError, UsageError, unknown

FLIPS = ("none", "random", "points")


class Samples(Protocol):
    """What a holder of data can be asked for, whatever the data is kept as: `Points`, or `Pixels`."""

    @property
    def x(self) -> Tensor:
        """All of it as numbers (n, d)."""
        ...

    @property
    def label(self) -> Tensor: ...

    @property
    def dimension(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...

    def at(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The points of these indices (m,), as (m, d); where they are varied at random, by the generator."""
        ...


def check_crop(least: float) -> None:
    """Refuses what is no share of an image."""
    if not 0 < least <= 1:
        raise UsageError(
            f"A crop of {least} was given; it is the least share of an image that is kept, above 0, and 1 keeps all."
        )


@dataclass(frozen=True)
class Pixels:
    """Images (n, channels · height · width) of bytes, of a `shape`, with labels (n,); as points they lie in [−1, 1].

    A byte b is the number b / 127.5 − 1. `flip` "random" mirrors each image that is drawn with probability one half,
    left to right; "points" counts every mirror image as a point of its own, behind the others, for couplings that know
    their points one by one. With a `crop` below 1 an image that is drawn is a random piece of itself, of at least that
    share of its area, stretched to the whole. All is done on the device of the bytes, which need a quarter of the room.

    >>> images = Pixels(torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([7]), (1, 1, 2), flip="points")
    >>> len(images), images.at(torch.tensor([0, 1]), torch.Generator()).tolist(), images.label.tolist()
    (2, [[-1.0, 1.0], [1.0, -1.0]], [7, 7])
    """

    bytes: Tensor
    labels: Tensor
    shape: tuple[int, int, int]
    flip: str = "none"
    dtype: torch.dtype = torch.float32
    crop: float = 1.0

    def __post_init__(self) -> None:
        check_crop(self.crop)
        if self.flip not in FLIPS:
            raise unknown("way of flipping images", self.flip, FLIPS)
        if self.bytes.dtype != torch.uint8 or self.bytes.ndim != 2 or self.bytes.shape[1] != prod(self.shape):
            raise DataError(
                f"Images of shape {tuple(self.bytes.shape)} and type {self.bytes.dtype} were given; they must be bytes"
                f" (uint8), {prod(self.shape)} an image of {' x '.join(map(str, self.shape))}."
            )
        if self.labels.shape != self.bytes.shape[:1]:
            raise DataError(f"{len(self.labels)} labels were given for {len(self.bytes)} images; each needs one.")

    @property
    def dimension(self) -> int:
        """Numbers of an image."""
        return self.bytes.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self.bytes.device

    @property
    def label(self) -> Tensor:
        """The labels, of mirror images again where these count."""
        return torch.cat([self.labels, self.labels]) if self.flip == "points" else self.labels

    @property
    def x(self) -> Tensor:
        """All images as numbers, whole and not mirrored at random: four times the room, or eight with mirror images."""
        found = self._numbers(self.bytes)
        return torch.cat([found, self._mirrored(found)]) if self.flip == "points" else found

    def __len__(self) -> int:
        return len(self.bytes) * (2 if self.flip == "points" else 1)

    def __getitem__(self, index: Tensor | slice) -> Pixels:
        """Some of the images; mirror images are chosen with them."""
        return replace(self, bytes=self.bytes[index], labels=self.labels[index])

    def at(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The images of these indices as numbers, cropped as `crop` and mirrored as `flip` says."""
        found = self._numbers(self.bytes[index % len(self.bytes)])
        if self.crop < 1:
            found = resized_crops(found.reshape(-1, *self.shape), self.crop, generator).flatten(1)
        if self.flip == "none":
            return found
        if self.flip == "points":
            turned = index >= len(self.bytes)
        else:
            turned = torch.rand(len(index), generator=generator, device=generator.device) < 0.5
        return torch.where(turned.to(found.device)[:, None], self._mirrored(found), found)

    def cast(self, dtype: torch.dtype) -> Pixels:
        """The same images, whose numbers have this type."""
        return replace(self, dtype=dtype)

    def to(self, device: torch.device | str) -> Pixels:
        """The same images there."""
        return replace(self, bytes=self.bytes.to(device), labels=self.labels.to(device))

    def _numbers(self, chosen: Tensor) -> Tensor:
        return chosen.to(self.dtype) / 127.5 - 1

    def _mirrored(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, *self.shape).flip(-1).reshape(rows.shape)
