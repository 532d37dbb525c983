"""The pieces of the UNet: norms in a chosen precision, residual blocks, attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.flow.conditioning._blocks import zeroed
from anabranch.flow.unet._configuration import Configuration


class Norm(nn.GroupNorm):
    """Group normalisation in 32 groups of h, or of h + shift, with `shift` (n, channels); returned as h came.

    It is computed in float32 or finer unless told otherwise. Channels that are no multiple of 32 are shared by a power
    of two of groups, with two channels or more in each.

    Compiled, it goes by channels: sums of each, and then one product and one addition for each number. Where colours
    lie together in memory a group is a strip of a few bytes at each place, while channels lie side by side. On an H200
    the kernels of a step of 384 images took 40 ms so, and 48 with torch's norms and maps as its compiler lays them out;
    torch's norms with maps as they lie now were not measured. Sums are always of float32 or finer.
    """

    def __init__(self, channels: int, configuration: Configuration) -> None:
        super().__init__(32 if channels % 32 == 0 else math.gcd(channels // 2, 32), channels)
        self.precise = configuration.norm_precision == "float32"

    def forward(self, h: Tensor, shift: Tensor | None = None) -> Tensor:
        if torch.compiler.is_compiling():
            fine = h.to(torch.promote_types(h.dtype, torch.float32))
            scale, offset = self._by_channel(fine, shift)
            return (fine * scale[:, :, None, None] + offset[:, :, None, None]).to(h.dtype)
        moved = h if shift is None else h + shift[:, :, None, None]
        kind = torch.promote_types(h.dtype, torch.float32) if self.precise else h.dtype
        normal = F.group_norm(moved.to(kind), self.num_groups, self.weight.to(kind), self.bias.to(kind), self.eps)
        return normal.to(h.dtype)  # float32 under autocast, whatever was asked for

    def _by_channel(self, h: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """What multiplies each channel (n, channels) of h, and what is added to it. A shift is counted, not added."""
        groups = (len(h), self.num_groups, -1)
        # Squares are summed about a number of the channel itself: about zero, a mean of a hundred deviations would
        # leave three of seven digits. Which number it is changes nothing, so no gradient goes through it.
        pivot = h[:, :, :1, :1].detach()
        first, second = (h - pivot).mean((2, 3)), (h - pivot).square().mean((2, 3))
        move = torch.zeros_like(first) if shift is None else shift.to(h.dtype)
        means = (first + pivot.flatten(1) + move).view(groups)
        mean = means.mean(2, keepdim=True)
        within = (second - first.square()).clamp_min(0).view(groups)
        spread = (within + (means - mean).square()).mean(2, keepdim=True)
        scale = self.weight.to(h.dtype).view(1, *groups[1:]) * (spread + self.eps).rsqrt()
        offset = self.bias.to(h.dtype).view(1, *groups[1:]) + scale * (move.view(groups) - mean)
        return scale.flatten(1), offset.flatten(1)


class Unbiased(nn.Conv2d):
    """A convolution whose bias is left to whoever calls it, to be added with something else.

    A bias by itself costs a look at all maps in its gradient.
    """

    bias: Tensor

    def forward(self, input: Tensor) -> Tensor:
        answer: Tensor = self._conv_forward(input, self.weight, None)
        return answer


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, with a shift (n, outputs) added between them (Ho et al. 2020).

    `forward(h, shift)`: h (n, inputs, H, W) to (n, outputs, H, W). The second convolution starts at zero, so that the
    block starts as its shortcut.
    """

    def __init__(self, inputs: int, outputs: int, configuration: Configuration) -> None:
        super().__init__()
        self.outputs = outputs
        self.first_norm = Norm(inputs, configuration)
        self.first = Unbiased(inputs, outputs, 3, padding=1)
        self.second_norm = Norm(outputs, configuration)
        self.dropout = nn.Dropout(configuration.dropout)
        self.second = zeroed(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, h: Tensor, shift: Tensor) -> Tensor:
        inner = self.first(F.silu(self.first_norm(h)))
        inner = self.second_norm(inner, shift + self.first.bias)
        inner = self.second(self.dropout(F.silu(inner)))
        answer: Tensor = self.shortcut(h) + inner
        return answer


class Attention(nn.Module):
    """Self-attention among the places of a map, beside a shortcut: h + softmax(q kᵀ/√c) v; it starts as the identity.

    Queries, keys and values are rows of one layer, head after head: head 0's queries, keys, values, then head 1's.
    """

    def __init__(self, channels: int, configuration: Configuration) -> None:
        super().__init__()
        self.heads = configuration.heads(channels)
        self.norm = Norm(channels, configuration)
        self.queries_keys_values = nn.Linear(channels, 3 * channels)
        self.output = zeroed(nn.Linear(channels, channels))

    def forward(self, h: Tensor) -> Tensor:
        # Places before channels: a view where channels come last in memory, one copy where they do not.
        places = self.norm(h).flatten(2).transpose(1, 2)
        parts = self.queries_keys_values(places).unflatten(-1, (self.heads, 3, -1)).transpose(1, 2)
        query, key, value = parts.unbind(dim=3)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        answer: Tensor = h + self.output(mixed).transpose(1, 2).reshape(h.shape)
        return answer


def doubled(h: Tensor, channels_last: bool) -> Tensor:
    """Every place four times, twice as high and wide, in the given order in memory.

    It is `interpolate` with "nearest", whose gradient is slow on a GPU.
    """
    count, channels, height, width = h.shape
    if not channels_last:
        spread = h[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
        return spread.reshape(count, channels, 2 * height, 2 * width)
    spread = h.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return spread.reshape(count, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


class _Dense(torch.autograd.Function):
    """Its argument; the gradient of that becomes one piece of memory, in which the colours of a place lie together."""

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing has to be kept."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope.contiguous(memory_format=torch.channels_last)


def beside(h: Tensor, other: Tensor, channels_last: bool) -> Tensor:
    """The channels of both maps, those of h first, in the given order in memory.

    The gradient of h is a part of theirs, with holes where the other channels lie. Each convolution that h comes from
    would copy it for itself, and slowly, so that it is copied here.
    """
    own: Tensor = _Dense.apply(h) if channels_last else h  # type: ignore[no-untyped-call]
    return torch.cat([own, other], dim=1)
