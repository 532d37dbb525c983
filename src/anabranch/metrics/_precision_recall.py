"""Are samples realistic, and do they show all there is? Precision and recall by nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.metrics._points import same_space

_ROUNDING = 1e-7  # of the largest norm: distances by matrix products are not more exact than that


@dataclass(frozen=True)
class PrecisionRecall:
    """The share of generated points among the real ones, and of real points among the generated ones."""

    precision: float
    recall: float


def precision_recall(real: Tensor, generated: Tensor, k: int = 3, chunk: int = 1024) -> PrecisionRecall:
    """Improved precision and recall, of features (n, d) and (m, d).

    A set's support is estimated by balls around its points that reach to the k-th nearest other point of the set.
    Precision is the share of generated points inside some ball of the real ones, recall the share of real points
    inside some ball of the generated ones. Sets of one size are compared best: balls shrink as a set grows.

    Kynkäänniemi et al., "Improved precision and recall metric for assessing generative models" (2019), eqs. (1) to (3).

    >>> x = torch.arange(10.0)[:, None]
    >>> precision_recall(x, x[:5]), precision_recall(x, x + 100)
    (PrecisionRecall(precision=1.0, recall=0.8), PrecisionRecall(precision=0.0, recall=0.0))
    """
    first, second = same_space(real, generated, ("real", "generated"))
    if not 1 <= k < min(len(first), len(second)):
        raise UsageError(
            f"k = {k} was given with {len(first)} real and {len(second)} generated points; each needs k ≥ 1 others."
        )
    middle = first.mean(0)
    first, second = first - middle, second.to(first.device) - middle
    slack = _ROUNDING * float(torch.maximum(first.norm(dim=1).max(), second.norm(dim=1).max()))
    return PrecisionRecall(
        _covered(second, first, _radius(first, k, chunk) + slack, chunk),
        _covered(first, second, _radius(second, k, chunk) + slack, chunk),
    )


def _radius(points: Tensor, k: int, chunk: int) -> Tensor:
    """From each point to its k-th nearest other one, (n,)."""
    # k + 1, as each point is its own nearest.
    return torch.cat([torch.cdist(part, points).kthvalue(k + 1, dim=1).values for part in torch.split(points, chunk)])


def _covered(points: Tensor, centres: Tensor, radius: Tensor, chunk: int) -> float:
    """The share of points in some ball."""
    inside = [(torch.cdist(part, centres) <= radius).any(1) for part in torch.split(points, chunk)]
    return float(torch.cat(inside).double().mean())
