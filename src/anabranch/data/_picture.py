"""One picture file as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from anabranch.data._layouts import Array
from anabranch.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
COLOURS = (0, 1, 3)
_GREY = ("1", "L", "LA")
_COARSE = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # with _GREY, all whose values fit into bytes


@dataclass(frozen=True)
class Framing:
    """How pictures become arrays (colours, height, width) of bytes.

    With a `side` the shorter side becomes so long, by averaging, and the middle square is kept; without (0) pictures
    stay as they are. `colours` are 1 (grey) or 3, or the file's own (0). A picture smaller than the side is refused,
    unless `enlarge` says to make it larger. Transparency is left out, and a camera's note on how it was held is heeded.
    """

    side: int = 0
    colours: int = 0
    enlarge: bool = False

    def __post_init__(self) -> None:
        if self.side < 0:
            raise UsageError(f"A side of {self.side} pixels was given; give a whole number, or 0 to keep sizes.")
        if self.colours not in COLOURS:
            raise UsageError(f"{self.colours} colours were given; give 1 (grey), 3, or 0 to keep what there is.")

    def read(self, path: Path) -> Array:
        """The picture in a PNG or JPEG file."""
        from PIL import Image

        try:
            with Image.open(path, formats=["PNG", "JPEG"]) as file:
                mode, shorter = file.mode, min(file.size)
                if mode in _GREY + _COARSE and (shorter >= self.side or self.enlarge):
                    return self._framed(file)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"'{path}' cannot be read as a picture: {error}; mend it, or take it away.") from error
        if mode not in _GREY + _COARSE:
            raise DataError(
                f"'{path}' has values that do not fit into bytes (mode {mode}); which part of them matters is for you"
                " to say: save it with values from 0 to 255."
            )
        raise DataError(
            f"'{path}' is {shorter} pixels on its shorter side, and {self.side} were asked for; take it away, or ask"
            " for a smaller side."
        )

    def _framed(self, file: Image) -> Array:
        from PIL import ImageOps
        from PIL.Image import Resampling

        colours = self.colours or (1 if file.mode in _GREY else 3)
        if self.side:
            file.draft(None, (self.side, self.side))  # of a JPEG file only as much is decoded as is needed
        upright = ImageOps.exif_transpose(file).convert("L" if colours == 1 else "RGB")
        if self.side:
            way = Resampling.BOX if min(upright.size) >= self.side else Resampling.BICUBIC
            upright = ImageOps.fit(upright, (self.side, self.side), way)
        width, height = upright.size
        return numpy.asarray(upright).reshape(height, width, colours).transpose(2, 0, 1)
