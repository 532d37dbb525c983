"""How far two labelled data sets are from each other, labels included: OTDD.

Labels of two data sets cannot be compared by name. Each class is instead described by the Gaussian with its mean and
covariance, and two labels are as far apart as their Gaussians are (Alvarez-Melis and Fusi 2020; FedWAD, Appendix D.3).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError, unknown
from anabranch.metrics._points import as_points, same_space
from anabranch.transport import bures, exact_plan, half_squared_cost, square_root

AUGMENTED = ("diagonal", "full")
GROUNDS = (*AUGMENTED, "bures")


@dataclass(frozen=True)
class _Classes:
    """The classes of a data set: which one each example belongs to, `index` (n,), and the mean of each (c, d).

    Covariances are divided by n_c, not n_c − 1. So a distance depends on the data as measures only: a data set is at no
    distance from itself taken twice, and a class of one example, which has no spread, needs no rule of its own.
    """

    index: Tensor
    mean: Tensor
    away: Tensor  # every example less its class's mean, (n, d)

    def covariance(self) -> Tensor:
        """Σ_c (c, d, d)."""
        parts = [self.away[self.index == number] for number in range(len(self.mean))]
        return torch.stack([part.T @ part / len(part) for part in parts])

    def deviation(self) -> Tensor:
        """The root of Σ_c's diagonal, (c, d)."""
        return _means(self.away.square(), self.index, len(self.mean)).sqrt()

    def described(self, covariance: str) -> Tensor:
        """Each class as a vector: its mean, and the root of its covariance or of the covariance's diagonal."""
        spread = self.deviation() if covariance == "diagonal" else square_root(self.covariance()).flatten(1)
        return torch.cat([self.mean, spread], dim=1)


def augment(x: Tensor, label: Tensor | None, covariance: str = "diagonal") -> Tensor:
    """Every example followed by the mean of its class and the root Σ^½ of its class's covariance, in float64.

    x (n, d) becomes (n, 3d) with the covariance's diagonal alone, (n, 2d + d²) with the "full" one. The Euclidean
    distance between such points is √(‖x − x'‖² + ‖m − m'‖² + ‖Σ^½ − Σ'^½‖²): that of OTDD where the covariances
    commute, as diagonal ones do. Equation (14) of FedWAD prints Σ for Σ^½, which would not be the distance between the
    Gaussians, nor of the same unit as the other terms.

    >>> augment(torch.tensor([[0.0], [2.0], [7.0], [7.0]]), torch.tensor([0, 0, 1, 1])).tolist()
    [[0.0, 1.0, 1.0], [2.0, 1.0, 1.0], [7.0, 7.0, 0.0], [7.0, 7.0, 0.0]]
    """
    if covariance not in AUGMENTED:
        raise unknown("form of the covariance", covariance, AUGMENTED)
    x = as_points(x, "x")
    classes = _classes(x, label, "label")
    return torch.cat([x, classes.described(covariance)[classes.index]], dim=1)


def otdd(
    x0: Tensor, label0: Tensor | None, x1: Tensor, label1: Tensor | None, covariance: str = "diagonal", power: float = 2
) -> float:
    """W_p between two labelled data sets, (n, d) and (m, d), with the ground distance

        √(‖x − x'‖² + W₂²(α_y, α_y')),

    α_y the Gaussian with the moments of class y. `covariance` says how W₂² is taken: "bures" exactly; "diagonal" and
    "full" as in `augment`, that is W_p between the augmented points. "diagonal" is never more than the exact one, as it
    sees the marginals only, and "full" never less. All three obey the triangle inequality and are zero for equal data
    sets. By an exact plan, in float64.

    >>> x, label = torch.tensor([[0.0], [2.0], [7.0], [7.0]]), torch.tensor([0, 0, 1, 1])
    >>> otdd(x, label, x, label + 3), round(otdd(x, label, x + 2, label) ** 2, 6)  # ‖s‖² twice: examples and means
    (0.0, 8.0)
    """
    if covariance not in GROUNDS:
        raise unknown("form of the covariance", covariance, GROUNDS)
    if not (power >= 1 and math.isfinite(power)):
        raise UsageError(f"p = {power} was given; W_p is a distance for p ≥ 1.")
    x0, x1 = same_space(x0, x1, ("x0", "x1"))
    first, second = _classes(x0, label0, "label0"), _classes(x1, label1, "label1")
    between = _between(first, second, covariance)
    squares = 2 * half_squared_cost(x0, x1) + between[first.index][:, second.index]
    plan = exact_plan(squares ** (power / 2))
    # The matrix product's rounding would leave 1e-8 where the distance is zero: the cells in use are computed directly.
    source, target = plan.pairs.index0, plan.pairs.index1
    exact = (x0[source] - x1[target]).square().sum(1) + between[first.index[source], second.index[target]]
    total = (plan.matrix[source, target] * exact ** (power / 2)).sum()
    return math.pow(total, 1 / power)


def _classes(x: Tensor, label: Tensor | None, name: str) -> _Classes:
    if label is None:
        raise UsageError(f"{name} is missing; data sets are compared by their classes, so give one label an example.")
    if label.is_floating_point() or label.is_complex():
        raise UsageError(f"{name} holds {label.dtype}; classes are numbered, so give whole numbers, or {name}.long().")
    if label.shape != (len(x),):
        raise UsageError(f"{name} has shape {tuple(label.shape)}; {len(x)} examples need one label each, ({len(x)},).")
    if bool((label < 0).any()):
        raise DataError(
            f"{name} holds {int(label.min())}; classes are numbered from 0. Leave out examples without a class."
        )
    names, index, count = torch.unique(label.to(x.device).long(), return_inverse=True, return_counts=True)
    alone = names[count == 1].tolist()
    if alone:
        warnings.warn(
            f"{_listed(alone)} in {name} with one example only, which shows no spread: the covariance there is taken to"
            " be zero. Add examples, or leave such classes out.",
            stacklevel=3,
        )
    mean = _means(x, index, len(names))
    return _Classes(index, mean, x - mean[index])


def _between(first: _Classes, second: _Classes, covariance: str) -> Tensor:
    """W₂² from each class of the one data set to each of the other, (c₀, c₁)."""
    if covariance != "bures":
        tables = first.described(covariance), second.described(covariance)
        return torch.cdist(*tables, compute_mode="donot_use_mm_for_euclid_dist").square()
    cov0, cov1 = first.covariance(), second.covariance()
    # A row at a time, as all pairs of large covariances at once would not fit into memory.
    return torch.stack([bures(mean, cov, second.mean, cov1) for mean, cov in zip(first.mean, cov0, strict=True)])


def _means(values: Tensor, index: Tensor, size: int) -> Tensor:
    """The mean over the rows of each index, (size, d)."""
    count = index.bincount(minlength=size)
    return values.new_zeros(size, values.shape[1]).index_add(0, index, values) / count[:, None]


def _listed(labels: list[int]) -> str:
    if len(labels) == 1:
        return f"Class {labels[0]} is"
    shown = [str(label) for label in labels[:10]]
    more = f" and {len(labels) - 10} more" if len(labels) > 10 else ""
    return f"Classes {', '.join(shown)}{more} are"
