"""By how much S atoms overstate a distance, as a silo can judge on its own data.

Two halves of a silo's data are two samples of one distribution. The silo runs the whole protocol between them, computes
their exact distance as well, and knows the difference of the squares. Squares, because what S atoms cannot follow, the
scatter of points about their centres, adds to a squared distance whatever that distance is. Halves have half as many
points, so S is halved with them, and quarters with a quarter of S show how the difference changes with size.
"""

from __future__ import annotations

import torch

from anabranch.methods.fedwad._places import draw_t
from anabranch.transport import Measure, crossing, crossing_distance, interpolate, measure, wasserstein

REPEATS = 2  # divisions of the data at each size
LARGEST = 2048  # points in a half: beyond that the exact distance would take longer than the protocol
RATIO = (0.5, 1.25)  # within which the difference may change when the number of points is doubled


def protocol_bias(data: Measure, support: int, rounds: int, generator: torch.Generator) -> float:
    """What (d_μ + d_ν)² exceeds W₂²(μ, ν) by, for silos like this one and so many atoms; 0 for fewer than 16 points.

    Extrapolated from quarters and halves of the data to its whole size.
    """
    size = len(data)
    half = min(size // 2, LARGEST)
    if half < 8:
        return 0.0
    small, large = (
        _excess(data.points, points, support * points / size, rounds, generator) for points in (half // 2, half)
    )
    if small <= 0 or large <= 0:
        return max(large, 0.0)
    ratio = min(max(large / small, RATIO[0]), RATIO[1])
    doublings = float(torch.tensor(size / half).log2())
    return float(large * ratio**doublings)


def converge(first: Measure, second: Measure, xi: Measure, rounds: int, generator: torch.Generator) -> Measure:
    """Algorithm 1 between two measures in one place: the last ξ, with places drawn at random."""
    for _ in range(rounds):
        left, right = (interpolate(m, xi, draw_t(generator)).measure for m in (first, second))
        xi = interpolate(left, right, draw_t(generator)).measure
    return xi


def _excess(points: torch.Tensor, size: int, support: float, rounds: int, generator: torch.Generator) -> float:
    """The mean of (d_μ + d_ν)² − W₂² over pairs of disjoint samples of that size."""
    atoms = max(1, round(support))
    total = 0.0
    for _ in range(REPEATS):
        order = torch.randperm(len(points), generator=generator)
        first, second = measure(points[order[:size]]), measure(points[order[size : 2 * size]])
        noise = torch.randn(atoms, points.shape[1], generator=generator, dtype=points.dtype)
        start = measure(points.mean(0) + points.std(0) * noise)
        xi = converge(first, second, start, rounds, generator)
        parts = [float(crossing_distance(m, xi, crossing(m, xi))) for m in (first, second)]
        total += sum(parts) ** 2 - float(wasserstein(first, second)) ** 2
    return total / REPEATS
