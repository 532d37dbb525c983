"""Images as metrics look at them: bytes, and the one way of resizing that a comparison with others allows."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError

Shape = tuple[int, int, int]
"""Channels, height, width."""


def to_bytes(rows: Tensor, shape: Shape) -> Tensor:
    """Rows (n, c · h · w) in [−1, 1] as images (n, c, h, w) of bytes: ⌊127.5 x + 128⌋, clipped to 0 … 255.

    A byte b that became b / 127.5 − 1 comes back as b. Values outside, which a flow may produce, are clipped.

    >>> to_bytes(torch.tensor([[-1.0, 0.0, 1.0, 3.0]]), (1, 2, 2)).flatten().tolist()
    [0, 128, 255, 255]
    """
    if rows.ndim != 2 or rows.shape[1] != prod(shape):
        raise UsageError(f"Rows of shape {tuple(rows.shape)} are no images of shape {shape}; give (n, {prod(shape)}).")
    if not bool(torch.isfinite(rows).all()):
        raise DataError("Images hold numbers that are not finite; no byte stands for them.")
    return (127.5 * rows.float() + 128).clip(0, 255).to(torch.uint8).reshape(-1, *shape)


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """Images (n, c, h, w) at another size, bilinear as in TensorFlow 1, in float32.

    Pixel i of the new image is at i · (old size / new size) of the old one: corners are not aligned, pixel centres are
    not halves, nothing is smoothed before shrinking. Other rules move every FID by a few points (Parmar, Zhang and Zhu,
    "On aliased resizing and surprising subtleties in GAN evaluation", 2022), and this is the rule that FID has had.
    """
    images = images.float()
    left, right, across = _neighbours(images.shape[3], width, images.device)
    top, bottom, down = _neighbours(images.shape[2], height, images.device)
    images = torch.lerp(images[..., left], images[..., right], across)
    return torch.lerp(images[:, :, top], images[:, :, bottom], down[:, None])


def _neighbours(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels that each new one lies between, and how far from the first."""
    place = torch.arange(new, dtype=torch.float32, device=device) * (old / new)
    first = place.long().clamp(max=old - 1)
    return first, (first + 1).clamp(max=old - 1), place - first
