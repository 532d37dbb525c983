"""The network of a judge of attributes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anabranch.metrics._pixels import Shape
from anabranch.seeds import derive

WIDTH = 128


class Judge(nn.Module):
    """Rows to features (n, 128), and from there one linear head for each attribute.

    Images pass convolutions that halve them until they are below 16 × 16, then a pooling to 4 × 4; points pass three
    layers after being standardised.
    """

    def __init__(self, dimension: int, sizes: tuple[int, ...], shape: Shape | None) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(dimension))
        self.register_buffer("scale", torch.ones(dimension))
        self.body = _points(dimension) if shape is None else _images(shape)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, size) for size in sizes)

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.body((x - self.get_buffer("centre")) / self.get_buffer("scale"))
        return found

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.features(x)
        return [head(features) for head in self.heads]


def _points(dimension: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (dimension, WIDTH, WIDTH):
        layers += [nn.Linear(inputs, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def _images(shape: Shape) -> nn.Module:
    channels, side = 32, min(shape[1:])
    layers: list[nn.Module] = [nn.Unflatten(1, shape), *_convolution(shape[0], channels, 1)]
    while True:
        wider = min(2 * channels, WIDTH)
        layers += [*_convolution(channels, wider, 2), *_convolution(wider, wider, 1)]
        channels, side = wider, (side + 1) // 2
        if side < 16:
            break
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def build_judge(dimension: int, sizes: tuple[int, ...], shape: Shape | None, seed: int) -> Judge:
    """A judge whose weights follow from the seed alone."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # layers draw from the global state: leave it alone
        torch.default_generator.manual_seed(derive(seed, "judge"))
        return Judge(dimension, sizes, shape)
