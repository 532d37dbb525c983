"""CIFAR-10: the binary version, and the sheets of PNG in which it is packaged. Never the pickled version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy

from anabranch.data._layouts import Array, Pixels, check_count, wanted
from anabranch.errors import DataError

_PIXELS = 3 * 32 * 32
_ROWS = 10_000  # images in a file


def cifar_files(split: str) -> list[tuple[str, ...]]:
    """The names of a split's files in the binary version."""
    return [(f"data_batch_{part}.bin",) for part in range(1, 6)] if split == "train" else [("test_batch.bin",)]


def read_cifar(folder: Path, split: str) -> Pixels:
    """The binary version: rows of a label and 3 · 32 · 32 bytes. Also the sheets, where the folder holds those."""
    names = cifar_files(split)
    sheets = [(Path(name).with_suffix(".png").name,) for (name,) in names]
    if any((folder / name).is_file() for (name,) in sheets):
        return _read_sheets(folder, wanted(folder, [*sheets, (f"{split}_lables.json",)]))  # so spelt there
    pickled = Path(names[0][0]).stem
    if (folder / pickled).is_file() and not (folder / names[0][0]).is_file():
        raise DataError(
            f"'{folder}' holds the pickled version of CIFAR-10, which is never opened, since unpickling runs code;"
            " give the folder of the binary version, cifar-10-binary.tar.gz."
        )
    rows = numpy.concatenate([_rows(path) for path in wanted(folder, names)])
    images = rows[:, 1:].reshape(-1, 3, 32, 32)
    return Pixels(images.shape, (images,), rows[:, 0].astype(numpy.int64))


def _rows(path: Path) -> Array:
    try:
        size = path.stat().st_size
        if size == 0 or size % (_PIXELS + 1) or size > _ROWS * (_PIXELS + 1):
            raise DataError(f"'{path}' has {size} bytes, not up to {_ROWS} rows of {_PIXELS + 1}; get it anew.")
        return numpy.fromfile(path, dtype=numpy.uint8).reshape(-1, _PIXELS + 1)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error


def _read_sheets(folder: Path, files: list[Path]) -> Pixels:
    *sheets, labels = files
    try:
        label = numpy.array(json.loads(labels.read_text()), dtype=numpy.int64)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"'{labels}' does not hold a list of labels: {error}.") from error
    count = sum(_size(sheet)[1] for sheet in sheets)
    check_count(folder, count, label.size if label.ndim == 1 else 0)
    return Pixels((count, 3, 32, 32), _sheets(sheets), label)


def _sheets(paths: list[Path]) -> Iterator[Array]:
    """A row of a sheet is an image: 1024 pixels, red, green and blue side by side."""
    from PIL import Image

    for path in paths:
        try:
            with Image.open(path, formats=["PNG"]) as sheet:
                rows = numpy.asarray(sheet)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"'{path}' is a damaged PNG file: {error}; get it anew.") from error
        yield rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as sheet:
            width, height = sheet.size
            plain = sheet.mode == "RGB"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"'{path}' is not a PNG file: {error}; get it anew.") from error
    if not plain or width != _PIXELS // 3 or height > _ROWS:
        raise DataError(f"'{path}' is no sheet of up to {_ROWS} rows of {_PIXELS // 3} coloured pixels; get it anew.")
    return width, height
