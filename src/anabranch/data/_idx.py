"""MNIST and its kin: idx files, and the .npz files of KMNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy

from anabranch.data._layouts import Array, Pixels, check_count, wanted
from anabranch.errors import DataError

_LARGEST = 2**30  # bytes that a file may declare; MNIST's largest has 47 million


def idx_files(split: str) -> list[tuple[str, ...]]:
    """The names of a split's images and labels."""
    part = "train" if split == "train" else "t10k"
    stems = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    return [(stem, f"{stem}.gz") for stem in stems]


def kmnist_files(split: str) -> list[tuple[str, ...]]:
    """The same for KMNIST, which comes in .npz files too."""
    npz = (f"kmnist-{split}-imgs.npz", f"kmnist-{split}-labels.npz")
    return [(name, *names) for name, names in zip(npz, idx_files(split), strict=True)]


def read_mnist(folder: Path, split: str) -> Pixels:
    """Images and labels in idx files, packed by gzip or not."""
    images, labels = wanted(folder, idx_files(split))
    return _pixels(folder, read_idx(images, 3), read_idx(labels, 1))


def read_kmnist(folder: Path, split: str) -> Pixels:
    """KMNIST in its .npz files, or in idx files."""
    images, labels = wanted(folder, kmnist_files(split))
    return _pixels(folder, _read_either(images, 3), _read_either(labels, 1))


def read_idx(path: Path, dimensions: int) -> Array:
    """The bytes of an idx file as an array: 0, 0, 8 (bytes), the dimensions, each size in four bytes, the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
                raise DataError(
                    f"'{path}' does not begin like an idx file of bytes in {dimensions} dimensions; get it anew."
                )
            shape = tuple(int(size) for size in numpy.frombuffer(header[4:], dtype=">u4"))
            count = math.prod(shape)
            if count > _LARGEST:
                raise DataError(f"'{path}' declares {count} bytes, more than any such set has; get it anew.")
            content = file.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) != count:
        held = f"only {len(content)}" if len(content) < count else "more"
        raise DataError(f"'{path}' declares {count} bytes and holds {held}; get it anew.")
    return numpy.frombuffer(content, dtype=numpy.uint8).reshape(shape)


def _read_either(path: Path, dimensions: int) -> Array:
    return _read_npz(path, dimensions) if path.suffix == ".npz" else read_idx(path, dimensions)


def _read_npz(path: Path, dimensions: int) -> Array:
    try:
        with numpy.load(path, allow_pickle=False) as file:
            array: Array = file["arr_0"]
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
        raise DataError(f"'{path}' does not hold one plain array 'arr_0'; get it anew.") from error
    if array.dtype != numpy.uint8 or array.ndim != dimensions:
        raise DataError(
            f"'{path}' holds {array.dtype} of shape {array.shape}; bytes in {dimensions} dimensions are needed."
        )
    return array


def _pixels(folder: Path, images: Array, label: Array) -> Pixels:
    check_count(folder, len(images), len(label))
    count, height, width = images.shape
    return Pixels((count, 1, height, width), (images[:, None],), label.astype(numpy.int64))
