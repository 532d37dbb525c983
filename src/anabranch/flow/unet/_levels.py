"""One level of the UNet on the way down, and one on the way up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor, nn

from anabranch.flow.unet._blocks import Attention, ResidualBlock, beside, doubled
from anabranch.flow.unet._configuration import Configuration


class Descent(nn.Module):
    """A level on the way down: half the size unless it is the top, then residual blocks, with attention or without.

    `forward(h, shifts)` takes one shift a block and gives every map that is kept for the way up, the last one last.
    """

    def __init__(self, inputs: int, level: int, configuration: Configuration) -> None:
        super().__init__()
        outputs = configuration.widths[level]
        self.halving = nn.Conv2d(inputs, inputs, 3, stride=2, padding=1) if level else None
        widths = [inputs, *[outputs] * configuration.blocks]
        self.blocks = nn.ModuleList(ResidualBlock(a, b, configuration) for a, b in pairwise(widths))
        self.attentions = _attentions(outputs, configuration.blocks, level, configuration)

    def forward(self, h: Tensor, shifts: Iterator[Tensor]) -> list[Tensor]:
        kept = []
        if self.halving is not None:
            h = self.halving(h)
            kept.append(h)
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            h = attention(block(h, next(shifts)))
            kept.append(h)
        return kept


class Ascent(nn.Module):
    """A level on the way up: twice the size unless it is the lowest, then residual blocks, each beside a kept map.

    `forward(h, kept, shifts)` takes as many maps from the end of `kept` as there are blocks. `others` are the channels
    of these maps, in the order they are taken.
    """

    def __init__(self, inputs: int, others: list[int], level: int, configuration: Configuration) -> None:
        super().__init__()
        outputs = configuration.widths[level]
        lowest = level == len(configuration.widths) - 1
        self.doubling = None if lowest else nn.Conv2d(inputs, inputs, 3, padding=1)
        self.channels_last = configuration.channels_last
        widths = [inputs, *[outputs] * (len(others) - 1)]
        self.blocks = nn.ModuleList(
            ResidualBlock(width + other, outputs, configuration) for width, other in zip(widths, others, strict=True)
        )
        self.attentions = _attentions(outputs, len(others), level, configuration)

    def forward(self, h: Tensor, kept: list[Tensor], shifts: Iterator[Tensor]) -> Tensor:
        if self.doubling is not None:
            height, width = kept[-1].shape[-2:]
            h = self.doubling(doubled(h, self.channels_last)[..., :height, :width])  # 7 became 4, and is 7 again
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            h = attention(block(beside(h, kept.pop(), self.channels_last), next(shifts)))
        return h


def _attentions(channels: int, count: int, level: int, configuration: Configuration) -> nn.ModuleList:
    attends = configuration.attends(level)
    return nn.ModuleList(Attention(channels, configuration) if attends else nn.Identity() for _ in range(count))
