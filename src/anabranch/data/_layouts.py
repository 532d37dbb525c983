"""What the readers of image sets share: one split as it is read, and the files it is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from anabranch.data._points import Split
from anabranch.errors import DataError
from anabranch.seeds import generator

Array = numpy.ndarray[Any, Any]
SPLITS = ("train", "test")
"""What a set is divided into: to train on, and to measure with."""


@dataclass(frozen=True)
class Pixels:
    """One split as it is read: images (n, channels, height, width) uint8, in blocks of rows.

    Blocks, since dSprites is three gigabytes: it passes from file to file without ever being in memory whole.
    """

    shape: tuple[int, int, int, int]
    blocks: Iterable[Array]
    label: Array
    factors: Array | None = None

    def array(self) -> Array:
        """All images in memory."""
        images = numpy.empty(self.shape, dtype=numpy.uint8)
        start = 0
        for block in self.blocks:
            images[start : start + len(block)] = block
            start += len(block)
        return images


Reader = Callable[[Path, str], Pixels]
"""Reads a split from a folder in the set's usual layout."""


def wanted(folder: Path, files: Sequence[tuple[str, ...]]) -> list[Path]:
    """The files in the folder; each may go by several names, of which the first that is there counts."""
    if not folder.is_dir():
        raise DataError(f"'{folder}' is not a folder; give the one that holds {spell(files)}.")
    found = [next((folder / name for name in names if (folder / name).is_file()), None) for names in files]
    missing = [names for names, path in zip(files, found, strict=True) if path is None]
    if missing:
        raise DataError(f"'{folder}' lacks {spell(missing)}; put what is missing there, or give another folder.")
    return [path for path in found if path is not None]


def spell(files: Iterable[tuple[str, ...]]) -> str:
    """The names of files for a sentence: 'a (or a.gz), b'."""
    return ", ".join(names[0] + (f" (or {' or '.join(names[1:])})" if len(names) > 1 else "") for names in files)


def check_count(folder: Path, images: int, labels: int) -> None:
    """Refuses images and labels that do not belong together."""
    if images != labels:
        raise DataError(f"'{folder}' holds {images} images and {labels} labels; the files do not belong together.")


def stratified(label: Array, fraction: float, name: str) -> Split:
    """The split of a set that comes without one: about `fraction` of every class held out, the same for everyone."""
    held = []
    for group in numpy.unique(label).tolist():
        index = torch.from_numpy(numpy.flatnonzero(label == group))
        order = torch.randperm(len(index), generator=generator(0, "split", name, group))
        held.append(index[order[: round(len(index) * fraction)]])
    chosen = torch.zeros(len(label), dtype=torch.bool)
    chosen[torch.cat(held)] = True
    return Split((~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0])
