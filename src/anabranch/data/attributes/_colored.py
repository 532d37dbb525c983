"""Digits in ten colours: digit × colour on 8 × 8 and 28 × 28 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data._images import ImageSet, load_images
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._observed import observed_mask
from anabranch.data.attributes._space import AttributeSpace

# A dim red stroke and a bright one differ in intensity only, so colours are told apart by direction. The closest two of
# these are 22° apart as directions of (red, green, blue): a tertiary hue with 105 = 255 · tan 22.4° lies half-way.
COLORS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (255, 0, 0),
        "orange": (255, 105, 0),
        "yellow": (255, 255, 0),
        "green": (0, 255, 0),
        "cyan": (0, 255, 255),
        "azure": (0, 105, 255),
        "blue": (0, 0, 255),
        "violet": (105, 0, 255),
        "magenta": (255, 0, 255),
        "white": (255, 255, 255),
    }
)
"""The colours of digits by name, as (red, green, blue) in 0 … 255."""

COLORED = AttributeSpace.of({"digit": [str(digit) for digit in range(10)], "color": list(COLORS)})


def colored_digits(split: str, count: int | None, seed: int, observed: Tensor | str | None = None) -> Attributed:
    """The 8 × 8 digits of scikit-learn, in colours."""
    return _drawn("digits", split, count, seed, observed)


def colored_mnist(split: str, count: int | None, seed: int, observed: Tensor | str | None = None) -> Attributed:
    """The 28 × 28 digits of MNIST, in colours (DCFM, section 6.1)."""
    return _drawn("mnist", split, count, seed, observed)


def paint(images: ImageSet, color: Tensor) -> Attributed:
    """Each image in the colour of its number: pixel = grey · colour on black, as rows in [−1, 1] of three channels.

    >>> dot = ImageSet(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.tensor([7]), tuple("0123456789"))
    >>> paint(dot, torch.tensor([2])).x.tolist()  # black and yellow, channel by channel
    [[-1.0, 1.0, -1.0, 1.0, -1.0, -1.0]]
    """
    grey = images.points()
    table = torch.tensor(list(COLORS.values()), dtype=torch.float32) / 255
    x = (grey[:, None, :] * table[color][:, :, None]).flatten(1).mul_(2).sub_(1)
    _, _, height, width = images.images.shape
    return Attributed(x, COLORED.encode(torch.stack([images.label, color], dim=1)), COLORED, (3, height, width))


def _drawn(name: str, split: str, count: int | None, seed: int, observed: Tensor | str | None) -> Attributed:
    """Images in random order, a digit's colour uniform among its observed ones; digits that have none are left out.

    Asked for more than there are, images come again, in a colour drawn anew.
    """
    images = load_images(name, split)
    random = seeds.generator(seed, name, split)
    weight = observed_mask(COLORED, observed).reshape(COLORED.sizes).float()
    usable = weight.any(dim=1)[images.label].nonzero()[:, 0]
    count = len(usable) if count is None else count
    passes = -(-count // len(usable))
    order = torch.cat([usable[torch.randperm(len(usable), generator=random)] for _ in range(passes)])[:count]
    color = torch.multinomial(weight[images.label[order]], 1, generator=random)[:, 0]
    return paint(images[order], color)
