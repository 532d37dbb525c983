"""Random resized crops, where images are: a piece of each, stretched to the whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

WIDEST = 4 / 3  # width to height of a piece, and height to width; the usual choice


def pieces(count: int, least: float, generator: torch.Generator) -> Tensor:
    """Rectangles (count, 4) inside a square of side two around 0: centre x, y, then half of width and of height.

    The share of the area is uniform in [least, 1], the logarithm of width to height uniform in ± log 4/3, the place
    uniform among those where the piece fits. A piece longer than the image is cut to it, which makes large ones a
    little smaller than their share: drawing anew would take an unknown number of tries.
    """
    area, ratio, *places = torch.rand(4, count, generator=generator, device=generator.device)
    area = least + (1 - least) * area
    stretch = torch.exp((2 * ratio - 1) * math.log(WIDEST))
    halves = torch.stack([(area * stretch).sqrt(), (area / stretch).sqrt()], 1).clamp(max=1)
    return torch.cat([(2 * torch.stack(places, 1) - 1) * (1 - halves), halves], 1)


def resized_crops(images: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Of each image (n, c, h, w) a random piece of at least this share of its area, bilinearly brought to h × w.

    Every number lies between those of the image, since it is a mean of four of them.
    """
    found = pieces(len(images), least, generator).to(images.device)
    precise = torch.promote_types(images.dtype, torch.float32)  # places need more digits than pixels
    turn = torch.diag_embed(found[:, 2:])
    grid = affine_grid(torch.cat([turn, found[:, :2, None]], 2).to(precise), list(images.shape), align_corners=False)
    stretched = grid_sample(images.to(precise), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return stretched.to(images.dtype)
