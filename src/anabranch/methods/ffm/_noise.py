"""The noises that silos look up: any of them from numbers of all silos, on any device, and never all at once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.coupling import Precise, Stream
from anabranch.data import Cloud, Shape
from anabranch.errors import RefusedError
from anabranch.methods.ffm._half import FlowHalf

BLOCK = 2**32  # noise i of block b is number b · BLOCK + i of the stream
PASS = 2**25  # numbers of the noises that are looked up at once: 128 MiB, and a few times that beside them


def shared_stream(half: FlowHalf, numbers: Tensor, purpose: str) -> Stream:
    """All noises for a purpose, by number: the same on every silo and device, chosen by nobody alone."""
    source = half.source.source if isinstance(half.source, Precise) else half.source
    if not isinstance(source, Shape | Cloud):
        raise RefusedError(f"Noises cannot be drawn by number from a source of type {type(source).__name__}.")
    return Stream(source, seeds.derive(seeds.derive(0, "semidiscrete", *numbers.tolist()), purpose))


def shared_noise(half: FlowHalf, numbers: Tensor, purpose: str, block: int, count: int, first: int = 0) -> Tensor:
    """`count` noises of a block, from its `first` on."""
    stream = shared_stream(half, numbers, purpose)
    drawn = _drawn if isinstance(stream.source, Shape) else _drawn.__wrapped__
    return drawn(stream, block * BLOCK + first, count, half.device)


@lru_cache(maxsize=1)
def _drawn(stream: Stream, first: int, count: int, device: torch.device) -> Tensor:
    """Drawn once for all silos of a process, which ask one after the other; nobody changes it."""
    return stream.points(torch.arange(first, first + count, device=device))


def rows_at_once(dimension: int) -> int:
    """How many noises are looked up in one pass, so that what is held beside them stays small."""
    return max(1, PASS // dimension)
