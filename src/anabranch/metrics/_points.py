"""What every metric asks of its points: there are some, they are finite, they live in one space."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError


def as_points(x: Tensor, name: str) -> Tensor:
    """x (n, ...) as (n, d) in float64: a metric's rounding must stay below what it measures."""
    if x.dim() < 2:
        raise UsageError(
            f"{name} has shape {tuple(x.shape)}, but points are rows. Give (n, d), or x[:, None] of numbers x."
        )
    if x.shape[0] == 0:
        raise DataError(f"{name} holds no points, so there is nothing to measure. Give at least one.")
    flat = x.detach().flatten(1).to(torch.float64)
    if not bool(torch.isfinite(flat).all()):
        raise DataError(f"{name} holds points that are not finite; a measure of them would mean nothing.")
    return flat


def same_space(x: Tensor, y: Tensor, names: tuple[str, str] = ("x", "y")) -> tuple[Tensor, Tensor]:
    """Both as (n, d) and (m, d) in float64."""
    first, second = as_points(x, names[0]), as_points(y, names[1])
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"{names[0]} has points of dimension {first.shape[1]}, {names[1]} of {second.shape[1]}. "
            "Give points of one space."
        )
    return first, second
