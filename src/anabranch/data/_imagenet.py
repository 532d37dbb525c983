"""ImageNet at 64 × 64: the batches of Chrabaszcz et al. 2017 ("A downsampled variant of ImageNet"), or pictures."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy

from anabranch.data._layouts import Array, Pixels, wanted
from anabranch.data._listing import Listing
from anabranch.data._picture import Framing
from anabranch.errors import DataError

SIDE, CLASSES = 64, 1000
_BATCHES = {"train": tuple(f"train_data_batch_{part}.npz" for part in range(1, 11)), "test": ("val_data.npz",)}
_FOLDERS = {"train": "train", "test": "val"}


def imagenet_files(split: str) -> list[tuple[str, ...]]:
    """The names of a split's files, or its folder."""
    names = _BATCHES[split]
    batches = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    return [(batches, f"pictures in {_FOLDERS[split]}/CLASS")]


def read_imagenet(folder: Path, split: str, classes: int = CLASSES, each: int = 0) -> Pixels:
    """The first `classes` classes, with at most `each` images of a class (0: all), the first in the files' order.

    Batches hold `data` (n, 3 · 64 · 64) and `labels` from 1, in an order of classes of their own; `mean` is left
    unread. Folders of pictures, `train/CLASS` and `val/CLASS`, count classes in the order of their names: the same
    label means another class there.
    """
    if folder.is_dir() and not (folder / _BATCHES[split][0]).is_file() and (folder / _FOLDERS[split]).is_dir():
        return _read_pictures(folder, split, classes, each)
    paths = wanted(folder, [(name,) for name in _BATCHES[split]])
    labels = [_labels(path) for path in paths]
    whole = numpy.concatenate(labels)
    kept = first_of_each(whole, classes, each)
    masks = numpy.split(kept, numpy.cumsum([len(part) for part in labels])[:-1])
    return Pixels((int(kept.sum()), 3, SIDE, SIDE), _blocks(paths, masks), whole[kept])


def first_of_each(label: Array, classes: int, each: int) -> Array:
    """A mask (n,) of the labels below `classes`, at most the first `each` of every one (0: all).

    >>> first_of_each(numpy.array([1, 0, 1, 2, 1]), 2, 2).tolist()
    [True, True, True, False, False]
    """
    found = label < classes
    if each:
        order = numpy.argsort(label, kind="stable")
        _, start, size = numpy.unique(label[order], return_index=True, return_counts=True)
        rank = numpy.empty(len(label), dtype=numpy.int64)
        rank[order] = numpy.arange(len(label)) - numpy.repeat(start, size)
        found &= rank < each
    return found


def _labels(path: Path) -> Array:
    found = _member(path, "labels")
    whole = found.ndim == 1 and found.dtype.kind in "iu"
    if not whole or (found.size and not 1 <= found.min() <= found.max() <= CLASSES):
        raise DataError(f"'{path}' holds no labels from 1 to {CLASSES}, one an image; get it anew.")
    return found.astype(numpy.int64) - 1


def _blocks(paths: Sequence[Path], masks: Sequence[Array]) -> Iterator[Array]:
    """A batch at a time: each takes a gigabyte and a half."""
    for path, mask in zip(paths, masks, strict=True):
        if not mask.any():
            continue
        data = _member(path, "data")
        if data.dtype != numpy.uint8 or data.shape != (len(mask), 3 * SIDE * SIDE):
            raise DataError(
                f"'{path}' holds {data.dtype} of shape {data.shape}; {len(mask)} rows of {3 * SIDE * SIDE} bytes,"
                f" images of 3 x {SIDE} x {SIDE}, are needed. There are batches of other sizes: take those of 64 x 64."
            )
        yield (data if mask.all() else data[mask]).reshape(-1, 3, SIDE, SIDE)


def _member(path: Path, name: str) -> Array:
    try:
        with numpy.load(path, allow_pickle=False) as file:
            found: Array = file[name]
            return found
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, EOFError, AttributeError, TypeError, BadZipFile, zlib.error) as error:
        raise DataError(f"'{path}' does not hold a plain array '{name}'; get it anew.") from error


def _read_pictures(folder: Path, split: str, classes: int, each: int) -> Pixels:
    listing = Listing.of(folder / _FOLDERS[split])
    known = Listing.of(folder / _FOLDERS["train"]).classes if split != "train" else listing.classes
    if listing.classes != known:
        odd = sorted(set(listing.classes) ^ set(known))[0]
        raise DataError(f"'{folder}' has the class '{odd}' in only one of train and val; labels would not agree.")
    if len(known) < classes:
        raise DataError(
            f"'{listing.folder}' holds pictures of {len(known)} classes, and {classes} are needed; put those of each"
            " class into a folder of their own."
        )
    chosen = listing[first_of_each(listing.label, classes, each)]
    return chosen.read(Framing(SIDE, 3, enlarge=True))
