"""A potential for images: the network whose couplings all silos share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.errors import UsageError
from anabranch.flow._networks import register_network
from anabranch.flow.unet._configuration import check_shape
from anabranch.flow.unet._spectral import SpectralConv, normalised

SMALLEST = 4  # the side of the last maps


@register_network("cnn-potential")
class ImagePotential(nn.Module):
    """A scalar potential f(x) of images as rows: convolutions W/σ(W) with SiLU, down to 4×4, mean, linear layer.

    `forward(x)`: x (n, colours · height · width) to (n,). FFM, App. C.2.1 has six convolutions and 1.15 M parameters;
    with 3×3 kernels, the widths given here and shape (3, 32, 32) there are 1 145 665. Kernel, widths, and which layers
    halve the maps are ours to choose: as many as it takes to come to four places or fewer a side, spread evenly.
    Rows may be more precise than parameters, in whose type all is computed. `channels_last` says how maps and weights
    lie in memory, which changes speed and nothing else.

    Convolutions shrink what they see and the linear layer alone sets the scale of f; `scale` multiplies it.
    """

    def __init__(
        self,
        dimension: int,
        shape: Sequence[int] = (3, 32, 32),
        widths: Sequence[int] = (64, 64, 128, 128, 256, 256),
        scale: float = 1.0,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        check_shape(dimension, shape)
        if not widths or any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths):
            raise UsageError(f"Layers cannot have widths {tuple(widths)}. Give whole numbers, one or more.")
        if not 0 < scale < math.inf:
            raise UsageError(f"A potential cannot be scaled by {scale}. Give a positive number.")
        self.shape, self.scale = tuple(shape), scale
        self.order = torch.channels_last if channels_last else torch.contiguous_format
        strides = _strides(max(shape[1:]), len(widths))
        layers = zip(pairwise([shape[0], *widths]), strides, strict=True)
        self.layers = nn.ModuleList(SpectralConv(before, after, stride) for (before, after), stride in layers)
        self.head = nn.Linear(widths[-1], 1)
        if channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return self.prepared()(x)

    def prepared(self) -> Callable[[Tensor], Tensor]:
        """f with the norms of its weights taken once, for many evaluations; gradients reach the parameters through it.

        For as long as the parameters stay as they are.
        """
        weights = [layer.weight for layer in self.layers if isinstance(layer, SpectralConv)]
        return partial(self._evaluated, normalised(weights))

    def _evaluated(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        h = x.to(self.head.weight.dtype).reshape(-1, *self.shape).contiguous(memory_format=self.order)
        for layer, weight in zip(self.layers, weights, strict=True):
            h = F.silu(layer(h, weight))
        values: Tensor = self.head(h.mean(dim=(2, 3))).squeeze(-1)
        return self.scale * values.to(x.dtype)


def _strides(side: int, layers: int) -> list[int]:
    """Two where maps are halved, else one.

    >>> _strides(32, 6), _strides(64, 6), _strides(8, 6)
    ([1, 2, 1, 2, 1, 2], [1, 2, 2, 1, 2, 2], [1, 1, 1, 1, 1, 2])
    """
    halvings = min(layers, max(0, math.ceil(math.log2(side / SMALLEST))))
    return [1 + ((layer + 1) * halvings // layers - layer * halvings // layers) for layer in range(layers)]
