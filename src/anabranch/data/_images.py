"""Images with labels: real sets, the same for everyone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from anabranch.data._cache import cached
from anabranch.data._catalogue import known
from anabranch.data._layouts import SPLITS, Array
from anabranch.data._pixels import Pixels
from anabranch.errors import DataError, UsageError, unknown


@dataclass(frozen=True)
class ImageSet:
    """Images (n, channels, height, width) uint8 with a `label` (n,) int64 each, which counts in `classes`.

    `factors` (n, 6) are there for dSprites alone, in the order of `FACTORS`. Images of the cache stay on disk until
    they are used: choose with an index first, then ask for `points`.

    >>> images = ImageSet(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("a", "b"))
    >>> ones = images[images.label == 1]
    >>> len(ones), ones.points().tolist()
    (2, [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    """

    images: Tensor
    label: Tensor
    classes: tuple[str, ...]
    factors: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise DataError(
                f"Images of shape {tuple(self.images.shape)} and type {self.images.dtype} were given; they must be"
                " bytes (uint8) in (n, channels, height, width)."
            )
        for what, values in (("labels", self.label), ("factors", self.factors)):
            if values is not None and len(values) != len(self.images):
                raise DataError(f"{len(values)} {what} were given for {len(self.images)} images; each needs one.")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor | slice) -> ImageSet:
        factors = None if self.factors is None else self.factors[index]
        return ImageSet(self.images[index], self.label[index], self.classes, factors)

    def points(self) -> Tensor:
        """The images as rows (n, channels · height · width) of float32 in [0, 1]."""
        return self.images.flatten(1).float().div_(255)

    def pixels(self) -> Pixels:
        """The images as bytes that become points in [−1, 1] when they are drawn."""
        channels, height, width = self.images.shape[1:]
        return Pixels(self.images.flatten(1).contiguous(), self.label, (channels, height, width))


def load_images(name: str, split: str = "train", folder: str | Path | None = None) -> ImageSet:
    """A split of a set, from the cache that `get` fills, or from a folder in the set's usual layout.

    `train` and `test` are disjoint; for digits and dSprites, which come undivided, they are drawn once and for all.

    >>> load_images("mnits", "test")
    Traceback (most recent call last):
    anabranch.errors.UsageError: There is no image set 'mnits'; did you mean 'mnist'? Known: cifar10, ...
    """
    entry = known(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if folder is not None and entry.included:
        raise UsageError(f"The set '{name}' comes with {entry.included}; leave the folder out.")
    if folder is None and not entry.included:
        arrays = cached(name, split)
        return ImageSet(
            _tensor(arrays["images"]),
            _tensor(arrays["label"]),
            entry.classes,
            _tensor(arrays["factors"]) if "factors" in arrays else None,
        )
    pixels = entry.read(Path(folder or ""), split)
    factors = None if pixels.factors is None else _tensor(pixels.factors)
    return ImageSet(_tensor(pixels.array()), _tensor(pixels.label), entry.classes, factors)


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(numpy.asarray(array))
