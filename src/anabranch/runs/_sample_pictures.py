"""Samples as pictures: all on one sheet, or one each in a folder that an interrupted command can go on with."""

from __future__ import annotations

import io
import json
import math
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from anabranch.errors import RunFolderError, UsageError
from anabranch.federation import write_atomically
from anabranch.runs._sample_drawing import Drawing
from anabranch.runs._sample_files import image_bytes, written

RECORD = "samples.json"  # beside the pictures: which samples they are
WIDTH = 800  # pixels that one picture of many is wide, about; more where images need it
Images = np.ndarray[Any, Any]
"""Bytes (n, h, w, c), c 1 or 3."""


def check_colours(shape: tuple[int, ...]) -> None:
    """Refuses images that a PNG file cannot hold."""
    if shape[0] not in (1, 3):
        raise UsageError(f"PNG files have 1 or 3 colours, and these images have {shape[0]}; write an .npz file.")


def draw_tiles(images: Images) -> bytes:
    """All images side by side as PNG, about as many in a row as rows, every pixel a square of one size."""
    count, height, width, colours = images.shape
    columns = math.ceil(math.sqrt(count))
    zoom = max(1, WIDTH // (columns * width))
    gap = max(1, zoom // 2)
    down, right = height * zoom + gap, width * zoom + gap
    sheet = np.full((-(-count // columns) * down + gap, columns * right + gap, colours), 255, np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * down + gap, number % columns * right + gap
        sheet[top : top + height * zoom, left : left + width * zoom] = image.repeat(zoom, 0).repeat(zoom, 1)
    return _png(sheet)


class PictureFolder:
    """00000.png and so on, each written whole, beside a record of which samples they are.

    Pictures of the same samples that are there already are kept, and drawing goes on behind them, at the beginning of a
    batch; a folder with anything else is refused. Pictures are written while the next are drawn.
    """

    def __init__(self, out: Path, drawing: Drawing) -> None:
        if not drawing.shape:
            raise UsageError(
                f"A folder of pictures was asked for ('{out}'), and the samples of this run are no images; write rows"
                " to .npy, .npz or .csv, or one picture of all points to .png."
            )
        check_colours(drawing.shape)
        self.out, self.drawing, self.start = out, drawing, 0
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[None] | None = None
        self._next = 0

    def __enter__(self) -> PictureFolder:
        with written(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            names = {path.name for path in self.out.iterdir() if not path.name.startswith(".")}
        if names:
            self._check(names)
        there = self._there()
        whole = there if there == self.drawing.count else there // self.drawing.batch * self.drawing.batch
        self.start = self._next = whole
        if RECORD not in names:  # before the first picture, so that what follows is known as what it is
            write_atomically(self.out / RECORD, (json.dumps(self.drawing.facts, indent=1) + "\n").encode())
        return self

    def add(self, x: Tensor) -> None:
        """The next images, written while the ones after them are drawn."""
        images = image_bytes(x, self.drawing.shape)
        self._settle()  # no more than one batch waits
        self._writing = self._pool.submit(self._write, images, self._next)
        self._next += len(images)

    def finish(self, evaluations: float) -> None:
        """Waits for the last ones."""
        self._settle()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    @property
    def left(self) -> str:
        """What there is after an interruption, once the last batch is written."""
        self._pool.shutdown()
        there, count = self._there(), self.drawing.count
        return f"Stopped: {there} of {count} samples are in {self.out}. The same command goes on from there."

    def _settle(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, images: Images, first: int) -> None:
        with written(self.out):
            for number, image in enumerate(images, first):
                temporary = self.out / f".{_name(number)}.tmp"
                temporary.write_bytes(_png(image))
                temporary.replace(self.out / _name(number))

    def _there(self) -> int:
        """How many pictures there are before the first that is missing."""
        names = {path.name for path in self.out.iterdir()}
        missing = (number for number in range(self.drawing.count) if _name(number) not in names)
        return next(missing, self.drawing.count)

    def _check(self, names: set[str]) -> None:
        """Refuses a folder of other things, of other samples, or of more samples than were asked for."""
        if RECORD not in names:
            raise RunFolderError(f"{self.out} holds other files ({min(names)}); choose another folder, or a new one.")
        try:
            found = json.loads((self.out / RECORD).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.out / RECORD} cannot be read; choose another folder.") from error
        wanted = json.loads(json.dumps(self.drawing.facts))
        other = [key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]]
        if other:
            raise RunFolderError(
                f"{self.out} holds other samples: {RECORD} there has another value of {' and '.join(other)}. Choose"
                " another folder."
            )
        if _name(self.drawing.count) in names:
            count = sum(name.endswith(".png") for name in names)
            raise RunFolderError(
                f"{self.out} holds {count} samples, more than the {self.drawing.count} that were asked for; give --n"
                f" {count}, or choose another folder."
            )


def _png(image: Images) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image if image.shape[2] == 3 else image[..., 0]).save(stream, format="PNG")
    return stream.getvalue()


def _name(number: int) -> str:
    return f"{number:05d}.png"
