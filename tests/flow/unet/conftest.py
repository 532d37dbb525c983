"""UNets small enough for seconds, with every parameter random: as built, the zero layers would hide everything."""

import math

import pytest
import torch

from anabranch.flow import network
from anabranch.seeds import generator

TINY = {"channels": 32, "multipliers": (1, 2), "blocks": 1, "attention": (4,), "head_channels": 16, "dropout": 0.0}


def _build(shape=(2, 8, 8), **options):
    built = network("unet", math.prod(shape), seed=0, shape=shape, **{**TINY, **options})
    random = generator(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))
    return built


@pytest.fixture
def build():
    return _build


@pytest.fixture
def rows():
    def draw(shape=(2, 8, 8), count=3):
        x = torch.randn(count, math.prod(shape), generator=generator(0, "x"))
        return x, torch.rand(count, generator=generator(0, "t"))

    return draw
