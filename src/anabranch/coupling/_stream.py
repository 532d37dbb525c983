"""A source's points by number: any row of an endless sequence, without those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.data import Cloud, Shape

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the odd number next to 2^64 / golden ratio, as a signed one
_MIXING = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_PASS = 2**17  # numbers drawn at once on a CPU, whose cache they stay in; a GPU draws all at once
_BITS = 23  # of a uniform number: (2b + 1) / 2^24 is a float32 without rounding, and never 0 or 1


def uniforms(seed: int, rows: Tensor, columns: int) -> Tensor:
    """Uniform numbers u (m, columns) in (0, 1), float32; u_rk is a function of the seed, the row's number and k alone.

    SplitMix64 (Steele, Lea & Flood 2014), whose k-th output is a hash of start + k · golden, and which starts for row r
    at the r-th output of another that starts at the seed. Whole numbers only, up to the last step, which is exact: the
    same bits on every device.

    >>> some, all = uniforms(7, torch.tensor([2, 0]), 3), uniforms(7, torch.arange(4), 3)
    >>> torch.equal(some, all[[2, 0]])
    True
    """
    steps = torch.arange(1, columns // 2 + columns % 2 + 1, device=rows.device)
    words = _mixed(_starts(seed, rows)[:, None] + steps * _GOLDEN)
    bits = words.view(torch.int32)[:, :columns]  # two numbers from each word
    bits = torch.bitwise_right_shift(bits, 32 - _BITS).bitwise_and_(2**_BITS - 1)
    return bits.to(torch.float32).mul_(2.0**-_BITS).add_(2.0 ** -(_BITS + 1))


@dataclass(frozen=True)
class Stream:
    """Points of a source, independent of each other, each a function of the seed and of its number.

    Whoever knows the seed can draw any of them, on any device, and gets the same up to the last digits of a float32.
    """

    source: Shape | Cloud
    seed: int

    def points(self, rows: Tensor) -> Tensor:
        """The points (m, d) of these numbers (m,), float32, on their device."""
        if isinstance(self.source, Cloud):
            choice = _mixed(_starts(self.seed, rows)).bitwise_and_(2**63 - 1) % len(self.source.x)
            return self.source.x.to(rows.device)[choice].float()
        size = max(1, len(rows) if rows.is_cuda else _PASS // self.source.uniforms)
        return torch.cat([self._pushed(self.source, part) for part in torch.split(rows, size)])

    def _pushed(self, source: Shape, rows: Tensor) -> Tensor:
        return source.push(uniforms(self.seed, rows, source.uniforms)).x


@dataclass(frozen=True)
class Noises:
    """Points of a stream as eight bytes each: their numbers `row` (m,). They are drawn when they are asked for."""

    stream: Stream
    row: Tensor
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        chosen = index.to(self.row.device) if isinstance(index, Tensor) else index
        return self.stream.points(self.row[chosen]).to(self.dtype)


def points_together(noises: Sequence[Tensor | Noises], index: Sequence[Tensor]) -> list[Tensor]:
    """`noises[i][index[i]]` for each i; drawn all at once where they come from one stream."""
    lazy = [noise for noise in noises if isinstance(noise, Noises)]
    first = lazy[0].stream if lazy else None
    if first is None or len(lazy) < len(noises) or any(noise.stream != first for noise in lazy):
        return [noise[chosen.to(_device(noise))] for noise, chosen in zip(noises, index, strict=True)]
    rows = [noise.row[chosen.to(noise.row.device)] for noise, chosen in zip(lazy, index, strict=True)]
    points = first.points(torch.cat(rows)).to(lazy[0].dtype)
    return list(torch.split(points, [len(part) for part in rows]))


def _device(noise: Tensor | Noises) -> torch.device:
    return noise.row.device if isinstance(noise, Noises) else noise.device


def _starts(seed: int, rows: Tensor) -> Tensor:
    return _mixed(rows * _GOLDEN + seed)


def _mixed(z: Tensor) -> Tensor:
    """A bijection of 64-bit numbers, in place, in which every bit of the old sways half of the bits of the new."""
    for shift, factor in _MIXING:
        z = z.bitwise_xor_(_shifted(z, shift)).mul_(factor)
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in: torch's own shift would repeat the sign."""
    return torch.bitwise_right_shift(z, by).bitwise_and_(2 ** (64 - by) - 1)
