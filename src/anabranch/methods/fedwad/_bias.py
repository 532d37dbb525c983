"""What S atoms cannot tell of a distance, as silos can judge on their own data.

Behind each atom stand many points, which scatter about their mean. W₂² is the coarse part, between the means, and the
cost of carrying one silo's scatter to the other's. Where the two scatter independently that costs q²_μ + q²_ν, the sum
of both; where they scatter alike a plan matches them, and saves 2κ·tr(Σ_μ^½ Σ_ν Σ_μ^½)^½. The trace is how alike two
covariances are. κ, between 0 and 1, is how much of a likeness finitely many points can use: a silo measures it between
two halves of its own data, whose exact distance it knows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.methods.fedwad._places import draw_t
from anabranch.transport import (
    Crossing,
    Measure,
    barycentres,
    crossing,
    crossing_distance,
    interpolate,
    measure,
    spread,
    wasserstein,
)

REPEATS = 2  # divisions of the data into halves
LARGEST = 2048  # points in a half: beyond that the exact distance would take longer than the protocol
LEAST = 8  # points in a half


def alignment(data: Measure, support: int, rounds: int, generator: torch.Generator) -> float:
    """κ for data like this and so many atoms; 0 for fewer than 16 points.

    Halves have half as many points, so S is halved with them.
    """
    half = min(len(data) // 2, LARGEST)
    if half < LEAST:
        return 0.0
    atoms, found = max(1, round(support * half / len(data))), 0.0
    for _ in range(REPEATS):
        order = torch.randperm(len(data), generator=generator)
        first, second = (measure(data.points[part]) for part in (order[:half], order[half : 2 * half]))
        noise = torch.randn(atoms, data.points.shape[1], generator=generator, dtype=torch.float64)
        xi = converge(first, second, measure(data.points.mean(0) + data.points.std(0) * noise), rounds, generator)
        parts = [settled(m, xi) for m in (first, second)]
        scatter = sum(q for _, q in parts)
        saved = coarse(parts) + scatter - float(wasserstein(first, second)) ** 2
        found += saved / scatter if scatter > 0 else 1.0
    return min(max(found / REPEATS, 0.0), 1.0)


def converge(first: Measure, second: Measure, xi: Measure, rounds: int, generator: torch.Generator) -> Measure:
    """Algorithm 1 between two measures in one place: the last ξ, with places drawn at random."""
    for _ in range(rounds):
        left, right = (interpolate(m, xi, draw_t(generator)).measure for m in (first, second))
        xi = interpolate(left, right, draw_t(generator)).measure
    return xi


def settled(data: Measure, xi: Measure) -> tuple[float, float]:
    """W₂² from the data to ξ, and the part of it that is scatter about the means behind the atoms."""
    plan = crossing(data, xi).reversed()
    return float(crossing_distance(xi, data, plan)) ** 2, spread(plan, xi, data)


def coarse(parts: list[tuple[float, float]]) -> float:
    """The squared distance between two sides by the means behind the atoms of ξ, from both sides' `settled`."""
    return float(sum(max(whole - scatter, 0.0) ** 0.5 for whole, scatter in parts)) ** 2


def scatter_factor(plan: Crossing, xi: Measure, data: Measure, count: int, generator: torch.Generator) -> Tensor:
    """L (r, d) with LᵀL ≈ the covariance of the scatter about the means behind atoms, r ≤ `count`; the trace is right.

    By a randomised range finder with two power iterations: the data may have thousands of dimensions.
    """
    away = data.points[plan.target] - barycentres(plan, xi, data)[plan.source]
    away = away * plan.mass.sqrt()[:, None]
    count = min(count, *away.shape)
    basis = torch.randn(away.shape[1], min(count + 8, *away.shape), generator=generator, dtype=torch.float64)
    for _ in range(3):
        basis = torch.linalg.qr(away.T @ (away @ basis)).Q
    _, strength, directions = torch.linalg.svd(away @ basis, full_matrices=False)
    factor = strength[:count, None] * (directions[:count] @ basis.T)
    kept, whole = float(factor.square().sum()), float(away.square().sum())
    scaled: Tensor = factor * math.sqrt(whole / kept) if kept > 0 else factor
    return scaled


def likeness(first: Tensor, second: Tensor) -> float:
    """tr(Σ^½ Σ' Σ^½)^½ of two covariances LᵀL, from their factors: the nuclear norm of L L'ᵀ."""
    return float(torch.linalg.matrix_norm(first.double() @ second.double().T, "nuc"))
