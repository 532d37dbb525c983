"""What a UNet is made of: sizes that must fit together, checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import UsageError, unknown

NORM_PRECISIONS = ("float32", "network")


@dataclass(frozen=True)
class Configuration:
    """One level a multiplier, each half as large as the one before, rounded up; the arguments are those of the UNet."""

    shape: Sequence[int]
    channels: int
    multipliers: Sequence[int]
    blocks: int
    attention: Sequence[int]
    head_channels: int
    dropout: float
    norm_precision: str
    channels_last: bool

    def __post_init__(self) -> None:
        counts = [("channels", self.channels), ("blocks", self.blocks), ("head_channels", self.head_channels)]
        for name, number in (*counts, *(("a multiplier", multiplier) for multiplier in self.multipliers)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise UsageError(f"A UNet cannot have {name} = {number!r}. Give a whole number, one or more.")
        if self.channels % 2 or not self.multipliers:
            raise UsageError(
                f"A UNet cannot have channels = {self.channels} and multipliers {tuple(self.multipliers)}. "
                "Give an even number of channels, for sines and cosines alike, and one multiplier or more."
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"Dropout is a probability below one and cannot be {self.dropout}. Give 0 for none.")
        if self.norm_precision not in NORM_PRECISIONS:
            raise unknown("precision of norms", self.norm_precision, NORM_PRECISIONS)
        self._check_attention()

    def _check_attention(self) -> None:
        for height in self.attention:
            if height not in self.heights:
                raise UsageError(
                    f"There is no map of height {height} to attend over: those of this UNet are "
                    f"{', '.join(map(str, self.heights))}. Name some of these, or none: attention = []."
                )
        attended = [width for level, width in enumerate(self.widths) if self.attends(level)]
        for width in (*attended, self.widths[-1]):
            self.heads(width)

    @property
    def widths(self) -> list[int]:
        """The channels of every level, from the top."""
        return [self.channels * multiplier for multiplier in self.multipliers]

    @property
    def heights(self) -> list[int]:
        """The height of every level's maps, from the top."""
        heights = [self.shape[1]]
        for _ in self.multipliers[1:]:
            heights.append((heights[-1] + 1) // 2)
        return heights

    def attends(self, level: int) -> bool:
        """Whether this level's blocks are followed by attention."""
        return self.heights[level] in self.attention

    def heads(self, width: int) -> int:
        """How many heads of `head_channels` share so many channels; a map with fewer has one head."""
        if width > self.head_channels and width % self.head_channels:
            raise UsageError(
                f"{width} channels cannot be shared by heads of {self.head_channels}. "
                "Where there is attention, channels times the multiplier must be a multiple of that (the"
                " lowest level always has it); change channels."
            )
        return max(1, width // self.head_channels)


def check_shape(dimension: int, shape: Sequence[int]) -> None:
    """Refuses a shape that is not (colours, height, width) with as many numbers as a row has."""
    if len(shape) != 3 or math.prod(shape) != dimension or min(shape) < 1:
        raise UsageError(
            f"Rows of {dimension} numbers are not images of shape {tuple(shape)}. "
            "Give (colours, height, width) whose product is the dimension."
        )
