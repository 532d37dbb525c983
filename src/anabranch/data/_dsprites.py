"""dSprites: every combination of shape, scale, orientation and place, 737 280 images of 64 × 64."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy

from anabranch.data._layouts import Array, Pixels, stratified, wanted
from anabranch.errors import DataError

FACTORS = ("color", "shape", "scale", "orientation", "x", "y")
"""The columns of `ImageSet.factors`, in dSprites' order."""

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
_BLOCK = 8192  # images read at a time, 32 MiB
_TEST = 0.1


def read_dsprites(folder: Path, split: str) -> Pixels:
    """A tenth of each shape, drawn once and for all, is for tests; the set itself comes undivided.

    The file's `metadata`, a pickled object, is not opened.
    """
    (path,) = wanted(folder, [(DSPRITES,)])
    try:
        with numpy.load(path, allow_pickle=False) as file:
            factors: Array = file["latents_classes"]
        with zipfile.ZipFile(path) as archive, archive.open("imgs.npy") as images:
            shape = _shape(images)
    except _DAMAGE as error:
        raise _damaged(path) from error
    if factors.ndim != 2 or factors.shape[1] != len(FACTORS) or shape != (len(factors), 64, 64):
        raise _damaged(path)
    label = factors[:, FACTORS.index("shape")]
    parts = stratified(label, _TEST, "dsprites")
    index = (parts.train if split == "train" else parts.held_out).numpy()
    chosen = numpy.zeros(len(factors), dtype=numpy.bool_)
    chosen[index] = True
    return Pixels(
        (len(index), 1, 64, 64),
        _blocks(path, chosen),
        label[index].astype(numpy.int64),
        factors[index].astype(numpy.int64),
    )


def _blocks(path: Path, chosen: Array) -> Iterator[Array]:
    """The chosen images, 0 and 255 instead of the file's 0 and 1, so that white is white as in the other sets."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("imgs.npy") as images:
            _shape(images)
            for start in range(0, len(chosen), _BLOCK):
                rows = chosen[start : start + _BLOCK]
                block = numpy.frombuffer(images.read(len(rows) * 64 * 64), dtype=numpy.uint8)
                yield block.reshape(-1, 1, 64, 64)[rows] * numpy.uint8(255)
    except _DAMAGE as error:
        raise _damaged(path) from error


def _shape(images: IO[bytes]) -> tuple[int, ...]:
    """The shape in the header of a .npy file of bytes, whose values follow."""
    numpy.lib.format.read_magic(images)
    shape, by_columns, dtype = numpy.lib.format.read_array_header_1_0(images)
    if by_columns or dtype != numpy.uint8:
        raise ValueError("not bytes in rows")
    return tuple(shape)


_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, IndexError)


def _damaged(path: Path) -> DataError:
    return DataError(f"'{path}' is damaged or is not dSprites as published; get it anew.")
