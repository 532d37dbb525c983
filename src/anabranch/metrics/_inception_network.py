"""Inception-v3 as TensorFlow published it in 2015, which is not the Inception-v3 of other libraries.

It pools averages without the padding, and the last of its blocks pools maxima instead.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 299
FEATURES = 2048


class Convolution(nn.Module):
    """relu(norm(x * weight)), where norm(x) = (x − mean) / √(var + 0.001) + beta has no scale."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, same: bool = True):
        super().__init__()
        self.kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.stride = stride
        self.padding = tuple(side // 2 for side in self.kernel) if same else (0, 0)
        self.register_buffer("weight", torch.zeros(outputs, inputs, *self.kernel))
        for name in ("beta", "mean", "var"):
            self.register_buffer(name, torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        # The norm is linear: taken into the convolution, it costs no pass over the map.
        weight, mean, var, beta = (self.get_buffer(name) for name in ("weight", "mean", "var", "beta"))
        scale = (var + 1e-3).rsqrt()
        return F.conv2d(x, weight * scale[:, None, None, None], beta - mean * scale, self.stride, self.padding).relu_()


class Beside(nn.Module):
    """Parts that all see the same input; their channels are put behind each other."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.children()], dim=1)


def chain(**parts: nn.Module) -> nn.Sequential:
    """Parts one after the other, by name."""
    return nn.Sequential(OrderedDict(parts))


def _average() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


def _block_35(inputs: int, pooled: int) -> nn.Module:
    c = Convolution
    return Beside(
        conv=c(inputs, 64, 1),
        tower=chain(conv=c(inputs, 48, 1), conv_1=c(48, 64, 5)),
        tower_1=chain(conv=c(inputs, 64, 1), conv_1=c(64, 96, 3), conv_2=c(96, 96, 3)),
        tower_2=chain(pool=_average(), conv=c(inputs, pooled, 1)),
    )


def _to_17(inputs: int) -> nn.Module:
    c = Convolution
    return Beside(
        conv=c(inputs, 384, 3, stride=2, same=False),
        tower=chain(conv=c(inputs, 64, 1), conv_1=c(64, 96, 3), conv_2=c(96, 96, 3, stride=2, same=False)),
        pool=nn.MaxPool2d(3, stride=2),
    )


def _block_17(middle: int) -> nn.Module:
    c, row, column = Convolution, (1, 7), (7, 1)
    return Beside(
        conv=c(768, 192, 1),
        tower=chain(conv=c(768, middle, 1), conv_1=c(middle, middle, row), conv_2=c(middle, 192, column)),
        tower_1=chain(
            conv=c(768, middle, 1),
            conv_1=c(middle, middle, column),
            conv_2=c(middle, middle, row),
            conv_3=c(middle, middle, column),
            conv_4=c(middle, 192, row),
        ),
        tower_2=chain(pool=_average(), conv=c(768, 192, 1)),
    )


def _to_8() -> nn.Module:
    c = Convolution
    return Beside(
        tower=chain(conv=c(768, 192, 1), conv_1=c(192, 320, 3, stride=2, same=False)),
        tower_1=chain(
            conv=c(768, 192, 1),
            conv_1=c(192, 192, (1, 7)),
            conv_2=c(192, 192, (7, 1)),
            conv_3=c(192, 192, 3, stride=2, same=False),
        ),
        pool=nn.MaxPool2d(3, stride=2),
    )


def _block_8(inputs: int, pool: nn.Module) -> nn.Module:
    c = Convolution

    def mixed() -> nn.Module:
        return Beside(conv=c(384, 384, (1, 3)), conv_1=c(384, 384, (3, 1)))

    return Beside(
        conv=c(inputs, 320, 1),
        tower=chain(conv=c(inputs, 384, 1), mixed=mixed()),
        tower_1=chain(conv=c(inputs, 448, 1), conv_1=c(448, 384, 3), mixed=mixed()),
        tower_2=chain(pool=pool, conv=c(inputs, 192, 1)),
    )


def network() -> nn.Sequential:
    """From images (n, 3, 299, 299) in [−1, 1) to features (n, 2048); weights are zero until some are loaded.

    Szegedy et al., "Rethinking the Inception architecture for computer vision" (2016), with the names and the pooling
    of the graph `inception-2015-12-05` that Heusel et al. (2017) defined FID by.
    """
    c = Convolution
    return chain(
        conv=c(3, 32, 3, stride=2, same=False),
        conv_1=c(32, 32, 3, same=False),
        conv_2=c(32, 64, 3),
        pool=nn.MaxPool2d(3, stride=2),
        conv_3=c(64, 80, 1),
        conv_4=c(80, 192, 3, same=False),
        pool_1=nn.MaxPool2d(3, stride=2),
        mixed=_block_35(192, 32),
        mixed_1=_block_35(256, 64),
        mixed_2=_block_35(288, 64),
        mixed_3=_to_17(288),
        mixed_4=_block_17(128),
        mixed_5=_block_17(160),
        mixed_6=_block_17(160),
        mixed_7=_block_17(192),
        mixed_8=_to_8(),
        mixed_9=_block_8(1280, _average()),
        mixed_10=_block_8(2048, nn.MaxPool2d(3, stride=1, padding=1)),
        pool_2=nn.AvgPool2d(8),
        rows=nn.Flatten(),
    )
