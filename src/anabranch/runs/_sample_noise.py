"""The points that samples begin from: the same ones, however many are drawn at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.coupling import Source
from anabranch.data import Cloud

BLOCK = 1024  # points of one generator
Noise = Callable[[int, int], Tensor]
"""Points (stop − start, d) from number `start` up to `stop`."""


def noise_of(source: Source, count: int, seed: int) -> Noise:
    """`count` points of a source; of a cloud no point twice, and more than it has are refused here."""
    if isinstance(source, Cloud):
        kept = source.points(count, seeds.generator(seed, "sample"))
        return lambda start, stop: kept[start:stop]
    return _in_blocks(source.points, count, seed)


def gaussian_noise(dimension: int, count: int, seed: int) -> Noise:
    """`count` points of N(0, I), as compositions begin from; more of them begin with the same."""

    def draw(size: int, generator: torch.Generator) -> Tensor:
        # Always a whole block: torch fills the last numbers of a tensor otherwise than those in its midst.
        return torch.randn(BLOCK, dimension, generator=generator)[:size]

    return _in_blocks(draw, count, seed)


def _in_blocks(draw: Callable[[int, torch.Generator], Tensor], count: int, seed: int) -> Noise:
    """Each block has a generator of its own, so that any stretch can be drawn without those before it."""

    @lru_cache(maxsize=1)  # small batches take several stretches of one block
    def block(number: int) -> Tensor:
        names = ("sample", number) if number else ("sample",)
        return draw(min(BLOCK, count - number * BLOCK), seeds.generator(seed, *names))

    def rows(start: int, stop: int) -> Tensor:
        numbers = range(start // BLOCK, -(-stop // BLOCK))
        parts = [block(n)[max(0, start - n * BLOCK) : stop - n * BLOCK] for n in numbers]
        return torch.cat(parts) if parts else block(0)[:0]

    return rows
