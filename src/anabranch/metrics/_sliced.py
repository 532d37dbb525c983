"""Sliced W2: one-dimensional distances averaged over directions, from points or from silos' counts alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.metrics._points import as_points, same_space


def projection_directions(dimension: int, count: int, generator: torch.Generator) -> Tensor:
    """Unit vectors (count, dimension), uniform on the sphere, in float64."""
    if dimension < 1 or count < 1:
        raise UsageError(f"There are no {count} directions in dimension {dimension}. Give one or more of each.")
    device = generator.device
    normal = torch.randn(count, dimension, generator=generator, dtype=torch.float64, device=device)
    return torch.nn.functional.normalize(normal, dim=1)


def sliced_wasserstein2(x: Tensor, y: Tensor, directions: Tensor) -> float:
    """SW2(x, y) = √ mean_θ W2²(⟨θ, x⟩, ⟨θ, y⟩) over the given directions, exact in each.

    x (n, d), y (m, d), directions θ (k, d), of which only the direction counts, not the length. At most
    `wasserstein2`; for a shift s it is √ mean_θ ⟨θ, s⟩² (Rabin et al. 2012; Bonneel et al. 2015).
    """
    x, y = same_space(x, y)
    first, second = (_project(values, directions).sort(dim=1).values for values in (x, y))
    if first.shape == second.shape:
        return math.sqrt((first - second).square().mean())
    return math.sqrt(_squared_distances(first, _equal(first), second, _equal(second)).mean())


def projection_edges(samples: Tensor, directions: Tensor, bins: int) -> Tensor:
    """Edges (k, bins − 1) that split the projected samples (n, d) into bins of equal size, up to one sample.

    An edge lies half-way between its two neighbouring samples. It depends on the model's samples alone, and
    so tells a silo nothing about another.
    """
    ordered = _project(as_points(samples, "samples"), directions).sort(dim=1).values
    count = ordered.shape[1]
    if not 2 <= bins <= count:
        raise UsageError(
            f"{count} samples cannot be split into {bins} bins. Give from 2 to {count} bins, or more samples."
        )
    return _even_edges(ordered, bins)


def projection_counts(points: Tensor, directions: Tensor, edges: Tensor) -> Tensor:
    """How many of the points (n, d) fall into each bin of each direction: int64 (k, bins).

    Bin b is [edge_{b−1}, edge_b); the outermost reach to infinity. All that a silo reports about its held-out
    points: each row sums to their number.
    """
    projected = _project(as_points(points, "points"), directions)
    edges = _check_edges(edges, projected)
    return _histogram(projected, edges)


def sliced_wasserstein2_from_counts(samples: Tensor, directions: Tensor, edges: Tensor, counts: Tensor) -> float:
    """SW2, estimated, between samples (n, d) and points known only by their counts.

    counts (k, bins), of integers or weights, lie between edges (k, bins − 1) along directions (k, d).
    In each direction the counted mass of a bin is spread evenly over the samples in that bin, and W2 is
    taken, exactly, between the samples and the samples so re-weighted. Mass in a bin without samples sits
    at the bin's centre, or at the edge of an outermost one.

    - Zero (to rounding) when the counts are those of the samples.
    - Tends to the true value as bins are added, where the samples' range covers the points; what lies
      beyond counts as lying among the outermost samples, so a model that misses a far region looks better
      than it is.
    - Counts may be sums over silos or λ-weighted mixtures: only proportions within a row matter. Negative
      entries, which noise for privacy can produce, count as zero.
    """
    ordered = _project(as_points(samples, "samples"), directions).sort(dim=1).values
    edges = _check_edges(edges, ordered)
    counted = _counted(ordered, edges, _check_counts(counts, edges))
    return math.sqrt(_squared_distances(ordered, _equal(ordered), *counted).mean())


def sliced_wasserstein2_floor(
    samples: Tensor, directions: Tensor, edges: Tensor, counts: Tensor, points: float, generator: torch.Generator
) -> float:
    """What `sliced_wasserstein2_from_counts` would give, about, for as many samples that are as good as real ones.

    In each direction samples, and as many points as the counts are of, are drawn anew from what the counts say: the
    samples as they re-weight them. Only the number of both and their spread make the two differ. The square is a mean
    over directions, so that one draw suffices. Where a model misses a far region the floor is too low, as there.
    """
    ordered = _project(as_points(samples, "samples"), directions).sort(dim=1).values
    edges = _check_edges(edges, ordered)
    values, weights = _counted(ordered, edges, _check_counts(counts, edges))
    if not points >= 1:
        raise UsageError(f"{points} points were given; there is no floor without one.")

    def drawn(count: int) -> Tensor:
        index = torch.multinomial(weights.cpu(), count, replacement=True, generator=generator)
        return values.gather(1, index.to(values.device))

    first = drawn(ordered.shape[1]).sort(dim=1).values
    bins = _even_edges(first, edges.shape[1] + 1)
    found = _histogram(drawn(round(points)), bins).to(first)
    counted = _counted(first, bins, found / found.sum(dim=1, keepdim=True))
    return math.sqrt(_squared_distances(first, _equal(first), *counted).mean())


def _even_edges(ordered: Tensor, bins: int) -> Tensor:
    """Edges (k, bins − 1) between rows of sorted values (k, n) that leave as many in every bin."""
    count = ordered.shape[1]
    above = torch.tensor([round(number * count / bins) for number in range(1, bins)], device=ordered.device)
    return (ordered[:, above - 1] + ordered[:, above]) / 2


def _counted(ordered: Tensor, edges: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Points that are known by their mass (k, bins) in each bin: sorted values, which are the samples (k, n) and the
    bins' centres, with weights."""
    inside = _histogram(ordered, edges)
    share = torch.where(inside > 0, mass / inside.clamp_min(1), 0.0)
    of_samples = share.gather(1, torch.searchsorted(edges, ordered, right=True))
    of_centres = torch.where(inside > 0, 0.0, mass)
    values, order = torch.cat([ordered, _centres(edges)], dim=1).sort(dim=1)
    return values, torch.cat([of_samples, of_centres], dim=1).gather(1, order)


def _squared_distances(x: Tensor, of_x: Tensor, y: Tensor, of_y: Tensor) -> Tensor:
    """W2² (k,) between rows of sorted values (k, n), (k, m) with weights that sum to one.

    ∫₀¹ (F⁻¹(u) − G⁻¹(u))² du, where both quantile functions are constant between their joint levels.
    """
    levels_x, levels_y = of_x.cumsum(dim=1), of_y.cumsum(dim=1)
    levels = torch.cat([levels_x, levels_y], dim=1).clamp(0, 1).sort(dim=1).values
    levels = torch.nn.functional.pad(levels, (1, 0))
    middles = (levels[:, 1:] + levels[:, :-1]) / 2
    quantiles = [
        values.gather(1, torch.searchsorted(own, middles).clamp_max(values.shape[1] - 1))
        for values, own in ((x, levels_x), (y, levels_y))
    ]
    return ((quantiles[0] - quantiles[1]).square() * levels.diff(dim=1)).sum(dim=1)


def _project(values: Tensor, directions: Tensor) -> Tensor:
    """⟨θ, x⟩ (k, n) for unit vectors along the directions (k, d)."""
    if directions.dim() != 2 or directions.shape[0] == 0 or directions.shape[1] != values.shape[1]:
        raise UsageError(
            f"Directions of shape {tuple(directions.shape)} do not fit points of dimension "
            f"{values.shape[1]}. Give (k, {values.shape[1]})."
        )
    directions = directions.to(values)
    lengths = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
    if not bool((torch.isfinite(lengths) & (lengths > 0)).all()):
        raise UsageError("A direction is zero or not finite, and so points nowhere. Leave it out.")
    projected: Tensor = (directions / lengths) @ values.T
    return projected


def _equal(values: Tensor) -> Tensor:
    return torch.full_like(values, 1 / values.shape[1])


def _histogram(values: Tensor, edges: Tensor) -> Tensor:
    bins = torch.searchsorted(edges, values.contiguous(), right=True)
    counts = torch.zeros(edges.shape[0], edges.shape[1] + 1, dtype=torch.int64, device=edges.device)
    return counts.scatter_add_(1, bins, torch.ones_like(bins))


def _centres(edges: Tensor) -> Tensor:
    return torch.cat([edges[:, :1], (edges[:, 1:] + edges[:, :-1]) / 2, edges[:, -1:]], dim=1)


def _check_edges(edges: Tensor, projected: Tensor) -> Tensor:
    if edges.dim() != 2 or edges.shape[0] != projected.shape[0] or edges.shape[1] == 0:
        raise UsageError(
            f"Edges of shape {tuple(edges.shape)} do not fit {projected.shape[0]} directions. "
            f"Give ({projected.shape[0]}, bins − 1)."
        )
    if not bool(torch.isfinite(edges).all()) or bool((edges.diff(dim=1) < 0).any()):
        raise UsageError("The edges of the bins must be finite and must not descend. Sort them.")
    return edges.to(projected).contiguous()


def _check_counts(counts: Tensor, edges: Tensor) -> Tensor:
    """The counts as proportions (k, bins) of their row."""
    shape = (edges.shape[0], edges.shape[1] + 1)
    if tuple(counts.shape) != shape:
        raise UsageError(f"Counts of shape {tuple(counts.shape)} do not fit the edges. Give {shape}.")
    mass = counts.to(edges).clamp_min(0)
    total = mass.sum(dim=1, keepdim=True)
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise DataError("A direction's counts hold no points, or are not finite; there is nothing to compare with.")
    return mass / total
