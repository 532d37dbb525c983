"""How far two sets of features are apart, as Gaussians: the Fréchet distance, which is FID on Inception's features.

Heusel et al., "GANs trained by a two time-scale update rule converge to a local Nash equilibrium" (2017).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.metrics._points import as_points
from anabranch.metrics._statistics import FeatureStatistics

ENOUGH = 10_000  # samples that FID is usually taken with at least


Features = Tensor | FeatureStatistics


def frechet_distance(a: Features, b: Features) -> float:
    """‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2 (Σ_a^½ Σ_b Σ_a^½)^½), in float64: squared W2 between the fitted Gaussians.

    Of features (n, d), or of their statistics. The root is that of a symmetric matrix, by its eigenvalues, so that a
    singular covariance does no harm to the arithmetic. With few points the estimate is too large, by an amount that
    falls like 1/n: compare values of equal n only, and heed the warning, which takes `a` for the real ones. Zero for
    equal sets, up to rounding.

    Statistics keep the root of their covariance: with one reference for many sets of samples, each distance after the
    first costs the eigenvalues of one matrix, taken on the device of the statistics with the root.

    >>> x = torch.tensor([[-1.0], [0.0], [1.0]]).repeat(9, 1)
    >>> round(frechet_distance(x, x + 3), 6)
    9.0
    """
    first, second = _statistics(a, "The first set"), _statistics(b, "The second set")
    _warn(first, second)
    passing = isinstance(a, Tensor) and not isinstance(b, Tensor)  # a root of a would be taken and lost
    if not first.has_root and (second.has_root or passing):
        first, second = second, first
    return _distance(first, second)


def frechet_bias(real: Features, count: int) -> float:
    """What `count` samples of the very distribution of `real` would be away from it: the value of a perfect model.

    To first order in 1/n and for normal features, n points are at 1/n times

        tr Σ + ½ Σᵢⱼ λᵢλⱼ / (λᵢ + λⱼ) + ¼ tr Σ        (mean, then covariance; λ the eigenvalues of Σ)

    from their distribution, and both sets are. Good where both have more points than dimensions. With fewer samples it
    is too large; with fewer real points, from which the eigenvalues come, too small.

    >>> unit = torch.tensor([[-1.0], [1.0]]).repeat(500, 1)
    >>> round(frechet_bias(unit, 1000), 5)                  # (1 + 1/4 + 1/4) / 1000, twice
    0.003
    """
    if count < 2:
        raise UsageError(f"The number of samples is {count}; it must be two at least.")
    known = _statistics(real, "The real set")
    values = known.spectrum[known.spectrum > 0]
    pairs = (values[:, None] * values / (values[:, None] + values)).sum()
    return float((1.25 * values.sum() + pairs / 2) * (1 / count + 1 / known.count))


@dataclass(frozen=True)
class Extrapolated:
    """The distance at infinitely many samples, `value`, by a line with this `slope` through `values` at 1 / `sizes`."""

    value: float
    slope: float
    sizes: tuple[int, ...]
    values: tuple[float, ...]


def extrapolated_frechet(
    real: Features,
    generated: Tensor,
    generator: torch.Generator,
    sizes: Sequence[int] | None = None,
) -> Extrapolated:
    """FID_∞: the distance for ever more *generated* samples, without the bias of their number.

    The bias is nearly proportional to 1/n, so distances of random parts of the samples (n, d), of several sizes, lie on
    a line in 1/n; its value at 0 is the answer. By default ten sizes from n/10, but no fewer than d + 1 where there
    are as many, since below that the line bends. The bias of the real features' own number stays.

    Chong and Forsyth, "Effectively unbiased FID and Inception Score and where to find them" (2020).
    """
    points, target = as_points(generated, "generated"), _statistics(real, "The real set")
    sizes = _sizes(*points.shape) if sizes is None else tuple(sizes)
    if len(set(sizes)) < 2 or min(sizes) < 2 or max(sizes) > len(points):
        raise UsageError(f"Sizes {tuple(sizes)} were given; a line needs two different ones, from 2 to {len(points)}.")
    if min(sizes) <= points.shape[1]:
        warnings.warn(
            f"Parts of {min(sizes)} samples in {points.shape[1]} dimensions are too small: there the distance is no"
            " line in 1/n, and the extrapolation is off. Generate more samples.",
            stacklevel=2,
        )
    values = []
    for size in sizes:
        part = torch.randperm(len(points), generator=generator)[:size].to(points.device)
        values.append(_distance(target, FeatureStatistics.of(points[part])))
    slope, value = numpy.polyfit([1 / size for size in sizes], values, 1)
    return Extrapolated(float(value), float(slope), tuple(sizes), tuple(values))


def _sizes(count: int, dimension: int) -> tuple[int, ...]:
    start = min(max(count // 10, dimension + 1), count // 2)
    return tuple(int(size) for size in numpy.linspace(start, count, 10).round())


def _statistics(features: Features, name: str) -> FeatureStatistics:
    found = FeatureStatistics.of(as_points(features, name)) if isinstance(features, Tensor) else features
    if found.count < 2:
        raise DataError(f"{name} of features has {found.count}, which have no covariance. Give two at least.")
    return found


def _distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """By the root of the first one's covariance, or, where points are few, by a factor of one of them.

    The cross term is the sum of the square roots of the eigenvalues of Σ_a Σ_b, which with Σ_a = Fᵀ F are those of the
    small matrix F Σ_b Fᵀ, and zeros.
    """
    if first.mean.shape != second.mean.shape:
        raise UsageError(
            f"One set of features has {len(first.mean)} dimensions, the other {len(second.mean)}; give one space."
        )
    second = second.to(first.mean.device)
    factors = [(one.factor, other) for one, other in ((first, second), (second, first))]
    thin = min(((f, other) for f, other in factors if f is not None), key=lambda pair: len(pair[0]), default=None)
    left, covariance = (first.root, second.covariance) if thin is None else (thin[0], thin[1].covariance)
    product = left @ covariance @ left.T
    values = torch.linalg.eigvalsh((product + product.T) / 2)
    # Zeros come out as rounding, the roots of which would add up to something.
    rounding = len(values) * torch.finfo(values.dtype).eps * values[-1].abs()
    cross = torch.where(values > rounding, values, 0.0).sqrt().sum()
    spread = first.covariance.trace() + second.covariance.trace() - 2 * cross
    return float((first.mean - second.mean).square().sum() + spread.clamp(min=0))


def _warn(real: FeatureStatistics, other: FeatureStatistics) -> None:
    count, dimension = min(real.count, other.count), len(real.mean)
    if count >= min(ENOUGH, 5 * dimension):
        return
    singular = "" if count > dimension else " Fewer points than dimensions make the covariance singular, too."
    warnings.warn(
        f"A Fréchet distance from {count} points in {dimension} dimensions is clearly too large, by roughly"
        f" {frechet_bias(real, other.count):.3g} even for a perfect model; the bias falls like 1/n.{singular} Compare"
        " it with others of the same number only; in Python extrapolated_frechet takes the bias off.",
        stacklevel=3,
    )
