"""The UNet of the papers' image experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.errors import UsageError
from anabranch.flow._networks import register_network
from anabranch.flow.conditioning._blocks import zeroed
from anabranch.flow.conditioning._embedding import AttributeEmbedding
from anabranch.flow.conditioning._masks import NULL
from anabranch.flow.conditioning._standard import Standard
from anabranch.flow.unet._blocks import Attention, Norm, ResidualBlock
from anabranch.flow.unet._configuration import Configuration, check_shape
from anabranch.flow.unet._levels import Ascent, Descent


@register_network("unet")
class ImageUNet(nn.Module):
    """A velocity v(x, t) or v(x, t, y) of images as rows: the UNet of Dhariwal and Nichol 2021, as Tong et al. 2024 use
    it for images. With the defaults and shape (3, 32, 32) it has their 35 746 307 parameters.

    `forward(x, t, y)`: x (n, colours · height · width), t (n,) or a single time, y (n, k) codes below `sizes`, NULL
    where not given (None: nowhere); returns rows like x. Sides may be any numbers. One level a multiplier, with
    `blocks` residual blocks down and one more up; attention, by heads of `head_channels`, at maps of the heights that
    `attention` lists and at the lowest. The last layer starts at zero, and so does what is returned. `center` and
    `spread`: see `Standard`; off unless `spread` is given.

    All inside is computed in the parameters' type (or autocast's), only time features, and norms unless
    `norm_precision` is "network", in float32 or finer; points may be more precise. `channels_last` says how maps and
    the weights of convolutions lie in memory, which changes speed and nothing else.
    """

    def __init__(
        self,
        dimension: int,
        shape: Sequence[int] = (3, 32, 32),
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (16,),
        head_channels: int = 64,
        dropout: float = 0.1,
        sizes: Sequence[int] = (),
        center: float = 0.0,
        spread: float = 0.0,
        norm_precision: str = "float32",
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        check_shape(dimension, shape)
        self.configuration = Configuration(
            tuple(shape),
            channels,
            multipliers,
            blocks,
            attention,
            head_channels,
            dropout,
            norm_precision,
            channels_last,
        )
        self.shape, self.sizes = tuple(shape), tuple(sizes)
        self.standard = Standard(center, spread)
        self._build(4 * channels)
        if channels_last:  # weights too: a convolution would turn each of them round in every pass
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _build(self, told: int) -> None:
        configuration, widths = self.configuration, self.configuration.widths
        top, lowest = widths[0], widths[-1]
        self.time = nn.Sequential(nn.Linear(configuration.channels, told), nn.SiLU(), nn.Linear(told, told))
        self.embedding = AttributeEmbedding(self.sizes, told) if self.sizes else None
        self.stem = nn.Conv2d(self.shape[0], top, 3, padding=1)
        before = [top, *widths[:-1]]
        self.down = nn.ModuleList(Descent(width, level, configuration) for level, width in enumerate(before))
        self.middle_first = ResidualBlock(lowest, lowest, configuration)
        self.middle_attention = Attention(lowest, configuration)
        self.middle_second = ResidualBlock(lowest, lowest, configuration)
        levels = list(reversed(range(len(widths))))
        below = [lowest, *(widths[level] for level in levels[:-1])]
        self.up = nn.ModuleList(
            Ascent(inputs, [*[widths[level]] * configuration.blocks, before[level]], level, configuration)
            for inputs, level in zip(below, levels, strict=True)
        )
        self.norm = Norm(top, configuration)
        self.head = zeroed(nn.Conv2d(top, self.shape[0], 3, padding=1))
        # One layer for the shifts of all blocks: one product instead of one a block.
        self.shift_sizes = [module.outputs for module in self.modules() if isinstance(module, ResidualBlock)]
        self.shifts = nn.Linear(told, sum(self.shift_sizes))

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        exact = t.to(torch.promote_types(x.dtype, torch.float32)).expand(x.shape[:1])
        if not self.standard.active:
            return self._body(x, exact, y).to(x.dtype)
        drift, scale = self.standard.drift(x, exact), self.standard.scale(exact)[:, None]
        return (drift + scale * self._body(self.standard.inputs(x, exact), exact, y).to(x.dtype)).to(x.dtype)

    def _body(self, x: Tensor, t: Tensor, y: Tensor | None) -> Tensor:
        images = x.to(self.stem.weight.dtype).reshape(-1, *self.shape)
        if self.configuration.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        shifts = iter(self.shifts(F.silu(self._told(t, y))).split(self.shift_sizes, dim=1))
        h = self.stem(images)
        kept = [h]
        for down in self.down:
            kept += down(kept[-1], shifts)
        h = self.middle_attention(self.middle_first(kept[-1], next(shifts)))
        h = self.middle_second(h, next(shifts))
        for up in self.up:
            h = up(h, kept, shifts)
        rows: Tensor = self.head(F.silu(self.norm(h))).reshape(x.shape)
        return rows

    def _told(self, t: Tensor, y: Tensor | None) -> Tensor:
        told: Tensor = self.time(time_features(t, self.configuration.channels).to(self.stem.weight.dtype))
        if y is not None and y.shape != (len(t), len(self.sizes)):
            raise UsageError(
                f"Codes of shape {tuple(y.shape)} were given for {len(t)} images of {len(self.sizes)} attributes. "
                "Give one row an image and one column an attribute."
            )
        if self.embedding is None:
            return told
        codes = t.new_full((len(t), len(self.sizes)), NULL, dtype=torch.long) if y is None else y
        effects: Tensor = self.embedding(codes).sum(dim=-2)
        return told + effects


def time_features(t: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of t (n,) at width / 2 frequencies that fall from 1 towards 1/10 000, to (n, width).

    Those of Ho et al. 2020 for step numbers. Tong et al. 2024 give them t in [0, 1] as it is, and so do we: their
    weights expect that.
    """
    frequency = torch.exp(torch.arange(width // 2, dtype=t.dtype, device=t.device) * (-2 * math.log(10_000) / width))
    angle = t.unsqueeze(-1) * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)
