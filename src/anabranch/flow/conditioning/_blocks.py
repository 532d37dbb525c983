"""The pieces of a UNet: residual blocks told what to do, attention, a level down, a level up."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut; a vector s scales and shifts what stands between them.

    `forward(h, s)`: h (n, inputs, H, W), s (n, told) to (n, outputs, H, W). The second convolution starts at zero, so
    that the block starts as its shortcut. Scale and shift after the norm: Dhariwal and Nichol 2021.
    """

    def __init__(self, inputs: int, outputs: int, told: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first_norm = group_norm(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.modulation = nn.Linear(told, 2 * outputs)
        self.second_norm = group_norm(outputs)
        self.dropout = nn.Dropout(dropout)
        self.second = zeroed(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, h: Tensor, s: Tensor) -> Tensor:
        scale, shift = self.modulation(s)[:, :, None, None].chunk(2, dim=1)
        inner = self.first(F.silu(self.first_norm(h)))
        inner = torch.addcmul(shift, self.second_norm(inner), 1 + scale)
        answer: Tensor = self.shortcut(h) + self.second(self.dropout(F.silu(inner)))
        return answer


class Attention(nn.Module):
    """Self-attention among the places of a feature map, beside a shortcut; it starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = math.gcd(channels, max(1, channels // 64))
        self.norm = group_norm(channels)
        self.queries_keys_values = nn.Linear(channels, 3 * channels)
        self.output = zeroed(nn.Linear(channels, channels))

    def forward(self, h: Tensor) -> Tensor:
        places = self.norm(h).flatten(2).transpose(1, 2)
        parts = self.queries_keys_values(places).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        answer: Tensor = h + self.output(mixed).transpose(1, 2).reshape(h.shape)
        return answer


class Descent(nn.Module):
    """One level on the way down: half the size, rounded up, unless it is the top; then residual blocks."""

    def __init__(self, inputs: int, outputs: int, told: int, blocks: int, dropout: float, top: bool) -> None:
        super().__init__()
        self.halving = nn.Identity() if top else nn.Conv2d(inputs, inputs, 3, stride=2, padding=1)
        widths = [inputs, *[outputs] * blocks]
        self.blocks = nn.ModuleList(ResidualBlock(a, b, told, dropout) for a, b in pairwise(widths))

    def forward(self, h: Tensor, s: Tensor) -> Tensor:
        h = self.halving(h)
        for block in self.blocks:
            h = block(h, s)
        return h


class Ascent(nn.Module):
    """One level on the way up: to the size of the map kept on the way down, joined with it; then residual blocks."""

    def __init__(self, inputs: int, outputs: int, told: int, blocks: int, dropout: float, bottom: bool) -> None:
        super().__init__()
        self.doubling = nn.Identity() if bottom else nn.Conv2d(inputs, inputs, 3, padding=1)
        widths = [inputs + outputs, *[outputs] * blocks]
        self.blocks = nn.ModuleList(ResidualBlock(a, b, told, dropout) for a, b in pairwise(widths))

    def forward(self, h: Tensor, kept: Tensor, s: Tensor) -> Tensor:
        if h.shape[-2:] != kept.shape[-2:]:
            h = doubled(h)[..., : kept.shape[-2], : kept.shape[-1]]  # the kept size: 7 became 4, and is 7 again
        h = torch.cat([self.doubling(h), kept], dim=1)
        for block in self.blocks:
            h = block(h, s)
        return h


def doubled(h: Tensor) -> Tensor:
    """Every place four times, twice as high and wide: `interpolate` with "nearest", whose gradient is slow on a GPU."""
    count, channels, height, width = h.shape
    spread = h[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return spread.reshape(count, channels, 2 * height, 2 * width)


def group_norm(channels: int) -> nn.Module:
    """Normalisation in eight groups of two channels or more, or as many of 4, 2, 1 as that leaves."""
    return nn.GroupNorm(math.gcd(max(1, channels // 2), 8) if channels % 2 == 0 else 1, channels)


def zeroed(layer: Layer) -> Layer:
    """The layer with weights and biases zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
