"""What S atoms cannot tell: scatter, likeness and how much of it a plan can use."""

import pytest
import torch

from anabranch.methods.fedwad._bias import alignment, coarse, likeness, scatter_factor, settled
from anabranch.transport import bures, crossing, measure, wasserstein


def cloud(size, dimension, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return measure(torch.randn(size, dimension, generator=generator, dtype=torch.float64) * scale)


def factor_of(data, xi, count=64):
    return scatter_factor(crossing(xi, data), xi, data, count, torch.Generator().manual_seed(0))


def test_with_one_atom_the_scatter_is_the_covariance():
    data, xi = cloud(300, 5, 1, torch.arange(1.0, 6.0)), measure(torch.zeros(1, 5, dtype=torch.float64))
    factor = factor_of(data, xi)
    assert torch.allclose(factor.T @ factor, torch.cov(data.points.T, correction=0), atol=1e-9)


def test_a_factor_of_few_directions_keeps_the_strongest_and_the_trace():
    data, xi = cloud(300, 30, 1, torch.linspace(3, 0.1, 30)), measure(torch.zeros(1, 30, dtype=torch.float64))
    few, whole = factor_of(data, xi, 8), torch.cov(data.points.T, correction=0)
    assert few.shape == (8, 30)
    assert float(few.square().sum()) == pytest.approx(float(whole.trace()), rel=1e-9)
    top = torch.linalg.eigh(whole).eigenvectors[:, -4:]
    found = torch.linalg.svd(few, full_matrices=False).Vh[:4].T
    assert float(torch.linalg.matrix_norm(top.T @ found, 2)) == pytest.approx(1, abs=1e-3)


def test_likeness_is_the_part_that_bures_takes_off():
    """W₂² of two Gaussians at one place is tr Σ + tr Σ' − 2 tr(Σ^½ Σ' Σ^½)^½."""
    first, second = (torch.randn(6, 4, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (1, 2))
    covariances = [factor.T @ factor for factor in (first, second)]
    zero = torch.zeros(4, dtype=torch.float64)
    traces = float(sum(c.trace() for c in covariances))
    expected = (traces - float(bures(zero, covariances[0], zero, covariances[1]))) / 2
    assert likeness(first, second) == pytest.approx(expected, rel=1e-9)


def test_a_distance_splits_into_a_coarse_part_and_scatter():
    data, xi = cloud(60, 3, 1), cloud(6, 3, 2)
    whole, scatter = settled(data, xi)
    assert whole == pytest.approx(float(wasserstein(data, xi)) ** 2)
    assert 0 < scatter < whole
    assert coarse([(5.0, 1.0), (10.0, 1.0)]) == pytest.approx(25)


def test_plans_use_a_likeness_better_in_few_dimensions_than_in_many():
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    low, high = (alignment(cloud(400, d, 1), 40, 10, g) for d, g in zip((2, 40), generators, strict=True))
    assert 0 < high < 0.5 < low <= 1


def test_too_few_points_say_nothing():
    assert alignment(cloud(15, 2, 1), 2, 3, torch.Generator()) == 0
