"""Numbers for a network to read: embeddings of attributes, with a null token each, and of time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anabranch.errors import UsageError


class AttributeEmbedding(nn.Module):
    """A table of |Y_i| + 1 rows for each attribute i; the last one, row |Y_i|, is its null token.

    `forward(y)`: codes (…, k), NULL where not given, to (…, k, width). Codes are not checked against `sizes`: that
    would make a GPU wait; they come from an attribute space, which has checked them.
    """

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = checked_sizes(sizes, width)
        self.tables = nn.ModuleList(nn.Embedding(size + 1, width) for size in self.sizes)

    def forward(self, y: Tensor) -> Tensor:
        return torch.stack([self.look_up(i, y[..., i]) for i in range(len(self.tables))], dim=-2)

    def look_up(self, attribute: int, code: Tensor) -> Tensor:
        """The rows (…, width) of one attribute's codes (…)."""
        rows: Tensor = self.tables[attribute](torch.where(code < 0, self.sizes[attribute], code))
        return rows


def checked_sizes(sizes: Sequence[int], width: int) -> list[int]:
    """The numbers of outcomes, refused unless they are whole numbers from one; likewise the embedding's width."""
    for size in (*sizes, width):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(
                f"Attributes cannot have sizes {list(sizes)} and embeddings of width {width!r}. "
                "Give whole numbers, one or more."
            )
    if not sizes:
        raise UsageError("A conditional network needs an attribute, but sizes is empty. Take an unconditional one.")
    return list(sizes)


def time_features(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of t (…), to (…, width): width / 2 frequencies in a geometric row from 1 to 1000 radians."""
    half = width // 2
    exponent = torch.arange(half, dtype=t.dtype, device=t.device) / max(half - 1, 1)
    angle = t.unsqueeze(-1) * torch.exp(math.log(1000.0) * exponent)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
