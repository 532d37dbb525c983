"""Features and statistics of real images on this disk, each with a stamp that says what they are of."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from anabranch.data import cache_folder
from anabranch.errors import DataError
from anabranch.metrics._statistics import FeatureStatistics

Facts = Mapping[str, Any]


def kept_statistics(facts: Facts) -> FeatureStatistics | None:
    """Statistics of these facts, if they are kept; what is damaged is told of, and is not there."""
    path = _path(facts, "npz")
    if not path.exists():
        return None
    try:
        found = FeatureStatistics.load(path)
        if found.count != facts["count"]:
            raise DataError(f"'{path}' is of {found.count} images, not {facts['count']}.")
    except DataError as error:
        warnings.warn(f"{error} It is made again.", stacklevel=4)
        return None
    return found


def keep_statistics(facts: Facts, statistics: FeatureStatistics) -> None:
    """Writes them, for the next time."""
    _write(facts, "npz", statistics.save)


def kept_features(facts: Facts) -> Tensor | None:
    """Features (n, d) of these facts, if they are kept; they stay on disk until they are used."""
    path = _path(facts, "npy")
    if not path.exists():
        return None
    try:
        # Copy-on-write, since torch wants arrays that can be written to: nothing written reaches the disk.
        found = numpy.load(path, mmap_mode="c", allow_pickle=False)
        if found.ndim != 2 or len(found) != facts["count"] or found.dtype != numpy.float32:
            raise ValueError(f"it holds {found.dtype} of shape {found.shape}, of {facts['count']} images")
    except (OSError, ValueError, EOFError) as error:
        warnings.warn(f"'{path}' is damaged: {error}. It is made again.", stacklevel=4)
        return None
    return torch.from_numpy(found)


def keep_features(facts: Facts, features: Tensor) -> None:
    """Writes them, for the next time."""

    def save(path: Path) -> None:
        with path.open("wb") as file:
            numpy.save(file, features.cpu().numpy(), allow_pickle=False)

    _write(facts, "npy", save)


def _path(facts: Facts, ending: str) -> Path:
    """A file for these facts alone."""
    mark = sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:12]
    return cache_folder() / "references" / f"{facts['set']}-{facts['split']}-{facts['count']}-{mark}.{ending}"


def _write(facts: Facts, ending: str, save: Callable[[Path], None]) -> None:
    """The file and its stamp, whole or not at all. A full disk costs the next one's time, not this one's result."""
    path = _path(facts, ending)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as room:
            save(Path(room) / path.name)
            stamp = Path(room) / "stamp.json"
            stamp.write_text(json.dumps(dict(facts), indent=2))
            stamp.replace(path.with_suffix(".json"))
            (Path(room) / path.name).replace(path)
    except OSError as error:
        warnings.warn(
            f"'{path}' cannot be written: {error.strerror or error}. The images will be looked at again next time; make"
            " room, or name another folder in the environment variable ANABRANCH_DATA.",
            stacklevel=4,
        )
