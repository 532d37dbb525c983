"""The distance between Gaussians, in closed form: Bures-Wasserstein."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError

SYMMETRY_TOLERANCE = 1e-6  # of the largest entry: how far a covariance in float32 may differ from its transpose
NEGATIVE_TOLERANCE = 1e-6  # of the largest eigenvalue: how far below zero rounding may carry one


def square_root(cov: Tensor) -> Tensor:
    """Σ^½, the symmetric positive semi-definite root of each Σ (…, d, d), in float64.

    By eigen-decomposition, so that singular matrices have theirs. Eigenvalues that are zero but for rounding count as
    zero: their roots would not be small any more.

    >>> square_root(torch.tensor([[4.0, 0.0], [0.0, 0.0]]))
    tensor([[2., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    cov = _check_covariance(cov)
    values, vectors = torch.linalg.eigh(cov)
    top = values[..., -1:].abs()
    if bool((values < -NEGATIVE_TOLERANCE * top).any()):
        raise DataError(
            f"A covariance has the eigenvalue {float(values.min()):.3g}; none may be negative. Give Σ itself, not its"
            " inverse or a difference of two."
        )
    rounding = cov.shape[-1] * torch.finfo(values.dtype).eps * top
    roots = torch.where(values > rounding, values, 0.0).sqrt()
    root: Tensor = (vectors * roots[..., None, :]) @ vectors.mT
    return (root + root.mT) / 2


def bures(mean0: Tensor, cov0: Tensor, mean1: Tensor, cov1: Tensor) -> Tensor:
    """The *squared* 2-Wasserstein distance between N(m₀, Σ₀) and N(m₁, Σ₁), in float64:

        ‖m₀ − m₁‖² + tr(Σ₀ + Σ₁ − 2 (Σ₀^½ Σ₁ Σ₀^½)^½).

    Means (…, d) and covariances (…, d, d) are broadcast; the answer has their leading shape. Covariances may be
    singular. Zero, exactly, for equal Gaussians; ‖m₀ − m₁‖² + ‖Σ₀^½ − Σ₁^½‖² for covariances that commute.

    >>> bures(torch.zeros(2), torch.eye(2), torch.tensor([3.0, 0.0]), 4 * torch.eye(2))
    tensor(11., dtype=torch.float64)
    """
    mean0, mean1 = _check_mean(mean0, cov0), _check_mean(mean1, cov1)
    if mean0.shape[-1] != mean1.shape[-1]:
        raise DataError(f"One Gaussian has {mean0.shape[-1]} dimensions, the other {mean1.shape[-1]}; give one space.")
    return (mean0 - mean1).square().sum(-1) + _turned(square_root(cov0), square_root(cov1))


def _turned(root0: Tensor, root1: Tensor) -> Tensor:
    """min_U ‖R₀ − R₁U‖² over orthogonal U: the trace term, as a sum of squares.

    The traces themselves would cancel, and leave 1e-8 where the distance is zero. The best U is the polar factor of
    R₁R₀; where that is the identity up to rounding, the identity is the better one.
    """
    left, _, right = torch.linalg.svd(root1 @ root0)
    turned = (root0 - root1 @ (left @ right)).square().sum((-2, -1))
    return torch.minimum(turned, (root0 - root1).square().sum((-2, -1)))


def _check_covariance(cov: Tensor) -> Tensor:
    if cov.ndim < 2 or cov.shape[-1] != cov.shape[-2] or cov.shape[-1] == 0:
        raise UsageError(f"A covariance of shape {tuple(cov.shape)} was given; it must be square, (…, d, d).")
    cov = cov.detach().double()
    if not bool(cov.isfinite().all()):
        raise DataError("A covariance holds numbers that are not finite; check the points it was made from.")
    size = cov.abs().amax((-2, -1), keepdim=True)
    if bool(((cov - cov.mT).abs() > SYMMETRY_TOLERANCE * size).any()):
        raise DataError("A covariance is not symmetric; give (Σ + Σᵀ)/2 if only rounding made it so.")
    return (cov + cov.mT) / 2


def _check_mean(mean: Tensor, cov: Tensor) -> Tensor:
    if mean.ndim < 1 or cov.ndim < 2 or mean.shape[-1] != cov.shape[-1]:
        raise UsageError(
            f"A mean of shape {tuple(mean.shape)} does not fit a covariance of shape {tuple(cov.shape)}; give (…, d)"
            " and (…, d, d)."
        )
    if not bool(mean.detach().isfinite().all()):
        raise DataError("A mean holds numbers that are not finite; check the points it was made from.")
    return mean.detach().double()
