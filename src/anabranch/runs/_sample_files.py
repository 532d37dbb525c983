"""The files that samples are written to, as they are drawn: arrays, and what is made of all of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import RunFolderError, UsageError
from anabranch.metrics import to_bytes
from anabranch.runs._sample_drawing import Drawing

Picture = Callable[[Tensor, float], bytes]
"""A picture of samples (n, d) that took so many evaluations each, as PNG."""


def image_bytes(x: Tensor, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rows (n, c · h · w) in [−1, 1] as images (n, h, w, c) of bytes, which they become where they are."""
    channels, height, width = shape
    images: np.ndarray[Any, Any] = to_bytes(x, (channels, height, width)).permute(0, 2, 3, 1).cpu().numpy()
    return images


class ArrayFile:
    """An .npy file of rows, or an .npz archive: `images` (n, h, w, c) of bytes where samples are images, else rows `x`
    (n, d), and an array of text for each attribute, or of numbers for labels. Written under another name, and renamed
    once it is whole."""

    start = 0

    def __init__(self, out: Path, drawing: Drawing) -> None:
        self.out, self.drawing = out, drawing
        self.zipped = out.suffix == ".npz"
        self.name = "images" if self.zipped and drawing.shape else "x"
        if self.zipped and self.name in drawing.attributes:
            raise UsageError(f"An attribute is called '{self.name}', as the samples are in an archive; write .npy.")
        self.temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        self._open = ExitStack()
        self._archive: zipfile.ZipFile | None = None
        self._rows: IO[bytes] | None = None
        self._begun = False

    def __enter__(self) -> ArrayFile:
        with written(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            if self.out.is_dir():
                raise UsageError(f"{self.out} is a folder; give a file's name, or end it in '/' for pictures in it.")
            file = self._open.enter_context(self.temporary.open("wb"))
        if self.zipped:
            self._archive = self._open.enter_context(zipfile.ZipFile(file, "w"))
            self._rows = self._open.enter_context(self._archive.open(f"{self.name}.npy", "w", force_zip64=True))
        else:
            self._rows = file
        return self

    def add(self, x: Tensor) -> None:
        """The next rows, in the order of their numbers."""
        assert self._rows is not None
        rows = image_bytes(x, self.drawing.shape) if self.name == "images" else x.cpu().numpy()
        with written(self.out):
            if not self._begun:
                _head(self._rows, (self.drawing.count, *rows.shape[1:]), rows.dtype)
                self._begun = True
            self._rows.write(np.ascontiguousarray(rows).data)

    def finish(self, evaluations: float) -> None:
        """What was asked of the samples goes behind them."""
        with written(self.out):
            if self._archive is not None and self._rows is not None:
                self._rows.close()
                for name, words in self.drawing.attributes.items():
                    with self._archive.open(f"{name}.npy", "w") as entry:
                        np.lib.format.write_array(entry, np.array(words), allow_pickle=False)
            self._open.close()
            self.temporary.replace(self.out)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._open.close()
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    @property
    def left(self) -> str:
        """What there is after an interruption."""
        return f"Stopped: {self.out} was not written."


class WholeFile:
    """A file that is made of all samples at once: a table (.csv) or one picture (.png)."""

    start = 0

    def __init__(self, out: Path, make: Callable[[Tensor, float], None]) -> None:
        self.out, self.make = out, make
        self._parts: list[Tensor] = []

    def __enter__(self) -> WholeFile:
        with written(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(self.out.parent, os.W_OK) or self.out.is_dir():
            raise RunFolderError(f"{self.out} cannot be written; choose another place with --out.")
        return self

    def add(self, x: Tensor) -> None:
        """The next rows."""
        self._parts.append(x.cpu())

    def finish(self, evaluations: float) -> None:
        """Makes the file of all rows."""
        with written(self.out):
            self.make(torch.cat(self._parts), evaluations)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.clear()

    @property
    def left(self) -> str:
        """What there is after an interruption."""
        return f"Stopped: {self.out} was not written."


@contextmanager
def written(out: Path) -> Iterator[None]:
    """Within, what the disk refuses becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise RunFolderError.unwritten(out, error) from error


def _head(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
