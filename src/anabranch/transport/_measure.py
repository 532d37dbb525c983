"""A measure of finitely many weighted points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.transport._cost import flat_points

Points = Tensor | np.ndarray[Any, Any] | Sequence[Sequence[float]]
SUM_TOLERANCE = 1e-4  # weights in float32 add up to one this closely, however many they are


@dataclass(frozen=True)
class Shared:
    """Last coordinates that many points have in common: those of point i are `table[index[i]]`, of a table (k, e)."""

    table: Tensor
    index: Tensor


@dataclass(frozen=True)
class Measure:
    """Σᵢ aᵢ δ(xᵢ): `points` (n, d) and `weight` (n,), which is positive and sums to one. Made by `measure`.

    `shared` may say that points have their last coordinates in common, which makes products with them quicker.
    """

    points: Tensor
    weight: Tensor
    shared: Shared | None = None

    def __len__(self) -> int:
        return len(self.points)

    def double(self) -> Measure:
        """The same in float64, with weights that sum to one in it; gradients pass."""
        weight = self.weight.double()
        return Measure(self.points.double(), weight / weight.sum(), self.shared)

    def detach(self) -> Measure:
        """The same without gradients."""
        return Measure(self.points.detach(), self.weight.detach(), self.shared)

    def times(self, columns: Tensor) -> Tensor:
        """(n, m): the inner products of all points with the columns (m, d), in the columns' precision."""
        if self.shared is None:
            return self.points.to(columns.dtype) @ columns.T
        own = self.points.shape[1] - self.shared.table.shape[1]
        common = self.shared.table.to(columns.dtype) @ columns[:, own:].T
        return (self.points[:, :own].to(columns.dtype) @ columns[:, :own].T).add_(common[self.shared.index])


def measure(points: Points, weight: Tensor | np.ndarray[Any, Any] | Sequence[float] | None = None) -> Measure:
    """The measure on these points (n, …), equally weighted where no weights are given; points without mass go.

    >>> measure([[0.0, 0.0], [3.0, 4.0]]).weight.tolist()
    [0.5, 0.5]
    """
    x = points if isinstance(points, Tensor) else torch.as_tensor(np.asarray(points))
    x = flat_points(x if x.is_floating_point() else x.to(torch.get_default_dtype()), "A measure")
    if not bool(x.detach().isfinite().all()):
        raise DataError("A measure holds points that are not finite; remove or impute them.")
    if weight is None:
        return Measure(x, torch.full((len(x),), 1 / len(x), dtype=x.dtype, device=x.device))
    a = torch.as_tensor(weight if isinstance(weight, Tensor) else np.asarray(weight)).to(x.device, x.dtype)
    if a.shape != (len(x),):
        raise UsageError(f"The weights have shape {tuple(a.shape)}; {len(x)} points need one weight each.")
    if not bool(a.detach().isfinite().all()) or bool((a < 0).any()):
        raise UsageError("Weights must be finite, and none may be negative.")
    total = float(a.detach().double().sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise UsageError(f"The weights sum to {total:.6g}; they must sum to one, so divide them by their sum.")
    if bool((a == 0).any()):
        x, a = x[a > 0], a[a > 0]
    return Measure(x, a / a.sum())


def same_space(x: Measure, y: Measure) -> None:
    """Refuses measures on spaces of different dimensions."""
    if x.points.shape[1] != y.points.shape[1]:
        raise DataError(
            f"One measure lies in {x.points.shape[1]} dimensions, the other in {y.points.shape[1]}; both must share"
            " one space."
        )
