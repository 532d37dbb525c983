"""The pictures in a folder: which there are, which class each is of, and their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy

from anabranch.data._layouts import Array, Pixels
from anabranch.data._picture import SUFFIXES, Framing
from anabranch.errors import DataError

_BLOCK = 256  # pictures in memory at once


@dataclass(frozen=True)
class Listing:
    """Pictures by their paths inside `folder`, in the order of their names; `label` counts in `classes`."""

    folder: Path
    files: tuple[str, ...]
    label: Array
    classes: tuple[str, ...]

    @staticmethod
    def of(folder: str | Path) -> Listing:
        """`folder/CLASS/…/*.png` (or .jpg, .jpeg), where labels are classes in the order of their names; or pictures
        in the folder itself, which are of one class, called as the folder is."""
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(
                f"'{folder}' is no folder; give one with pictures, or with a folder of them for each class."
            )
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not _hidden(entry.name))
            flat = _pictures(folder, [entry.name for entry in os.scandir(folder) if entry.is_file()])
            found = {name: _below(folder, name) for name in names}
        except OSError as error:
            raise DataError(f"'{error.filename}' cannot be read: {error.strerror}.") from error
        found = {name: files for name, files in found.items() if files}
        if flat and found:
            raise DataError(
                f"'{folder}' holds pictures ('{flat[0]}') beside folders of them ('{next(iter(found))}'); put every one"
                " into the folder of its class, or all into one folder."
            )
        found = {folder.resolve().name: flat} if flat else found
        if not found:
            raise DataError(f"'{folder}' holds no pictures: no files that end in {', '.join(SUFFIXES)}.")
        label = numpy.repeat(numpy.arange(len(found), dtype=numpy.int64), [len(files) for files in found.values()])
        return Listing(folder, tuple(file for files in found.values() for file in files), label, tuple(found))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, chosen: Array) -> Listing:
        """Some of the pictures, by a mask (n,); classes stay as they are."""
        files = tuple(file for file, keep in zip(self.files, chosen.tolist(), strict=True) if keep)
        return Listing(self.folder, files, self.label[chosen], self.classes)

    def digest(self) -> str:
        """Of names, sizes and times of change: another one where a picture came, went or changed."""
        found = sha256()
        for name in self.files:
            try:
                facts = (self.folder / name).stat()
            except OSError as error:
                raise DataError(f"'{self.folder / name}' cannot be read: {error.strerror}; take it away.") from error
            found.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode(errors="surrogateescape"))
        return found.hexdigest()

    def read(self, framing: Framing) -> Pixels:
        """The bytes of all, in blocks that are read when they are asked for; all must have the shape of the first."""
        first = framing.read(self.folder / self.files[0]).shape
        colours, height, width = first
        return Pixels((len(self), colours, height, width), self._blocks(framing, first), self.label)

    def _blocks(self, framing: Framing, shape: tuple[int, ...]) -> Iterator[Array]:
        def read(name: str) -> Array:
            found = framing.read(self.folder / name)
            if found.shape != shape:
                raise _differs(self.folder / self.files[0], shape, self.folder / name, found.shape)
            return found

        with ThreadPoolExecutor() as pool:  # decoding leaves Python free
            for start in range(0, len(self), _BLOCK):
                yield numpy.stack(list(pool.map(read, self.files[start : start + _BLOCK])))


def _below(folder: Path, name: str) -> list[str]:
    """Pictures in a class's folder, at any depth."""
    return sorted(
        str(Path(place, file).relative_to(folder))
        for place, _, files in os.walk(folder / name)
        for file in _pictures(Path(place), files)
    )


def _pictures(place: Path, names: Sequence[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not _hidden(name))


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _differs(first: Path, shape: tuple[int, ...], other: Path, found: tuple[int, ...]) -> DataError:
    if shape[0] != found[0]:
        grey, coloured = (first, other) if shape[0] == 1 else (other, first)
        return DataError(
            f"'{grey}' is grey and '{coloured}' is coloured; say which all shall be: colours = 1 (grey) or colours = 3."
        )
    sizes = [f"{height} x {width}" for _, height, width in (shape, found)]
    return DataError(
        f"'{first}' is {sizes[0]} (height, width) and '{other}' {sizes[1]}; give a side, to which all are cut and made"
        " smaller, as in side = 64."
    )
