"""The distance between Gaussians against closed forms and against another implementation."""

import math

import ot
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator
from anabranch.transport import bures, square_root


def gaussian(seed, dimension, rank=None):
    random = generator(seed, "bures")
    factor = torch.randn(dimension, rank or dimension + 2, generator=random, dtype=torch.float64)
    return torch.randn(dimension, generator=random, dtype=torch.float64), factor @ factor.T


@pytest.mark.parametrize("rank", [1, 3, None])
def test_the_root_is_symmetric_positive_and_squares_to_the_covariance(rank):
    _, cov = gaussian(0, 6, rank)
    root = square_root(cov)
    assert torch.equal(root, root.T)
    assert torch.linalg.eigvalsh(root).min() > -1e-9
    assert torch.linalg.matrix_rank(root) == (rank or 6)
    torch.testing.assert_close(root @ root, cov, rtol=1e-10, atol=1e-10)


def test_on_the_line_means_and_deviations_add_up():
    found = bures(torch.tensor([1.0]), torch.tensor([[9.0]]), torch.tensor([5.0]), torch.tensor([[4.0]]))
    assert float(found) == pytest.approx(4**2 + (3 - 2) ** 2)


def test_it_is_what_another_implementation_finds():
    (mean0, cov0), (mean1, cov1) = gaussian(1, 5), gaussian(2, 5)
    expected = ot.gaussian.bures_wasserstein_distance(*(part.numpy() for part in (mean0, mean1, cov0, cov1))) ** 2
    assert float(bures(mean0, cov0, mean1, cov1)) == pytest.approx(float(expected), rel=1e-9)
    assert float(bures(mean1, cov1, mean0, cov0)) == pytest.approx(float(expected), rel=1e-9)


def test_for_commuting_covariances_it_is_the_distance_of_the_roots():
    mean, cov = gaussian(3, 4)
    vectors = torch.linalg.eigh(cov).eigenvectors
    first, second = torch.tensor([1.0, 4.0, 9.0, 0.0]).double(), torch.tensor([4.0, 0.0, 1.0, 16.0]).double()
    found = bures(mean, vectors * first @ vectors.T, mean, vectors * second @ vectors.T)
    assert float(found) == pytest.approx(float((first.sqrt() - second.sqrt()).square().sum()))


@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.7, math.pi / 2])
def test_between_gaussians_on_two_lines(angle):
    # Rank one, Σ = u uᵀ: tr Σ₀ + tr Σ₁ − 2 |u·v|.
    u, v = torch.tensor([[1, 0, 0], [math.cos(angle), math.sin(angle), 0]], dtype=torch.float64)
    zero = torch.zeros(3)
    found = bures(zero, torch.outer(u, u), zero, torch.outer(v, v))
    assert float(found) == pytest.approx(2 - 2 * abs(math.cos(angle)), rel=1e-8, abs=1e-15)


def test_a_point_is_as_far_as_the_gaussian_is_wide():
    mean, cov = gaussian(4, 5)
    assert float(bures(mean, cov, mean, torch.zeros(5, 5))) == pytest.approx(float(cov.trace()))


@pytest.mark.parametrize("rank", [1, 10, None])
def test_a_gaussian_is_at_no_distance_from_itself(rank):
    mean, cov = gaussian(5, 30, rank)
    assert float(bures(mean, cov, mean, cov)) == 0.0


def test_small_distances_do_not_drown_in_rounding():
    mean, cov = gaussian(6, 8)
    turn = torch.linalg.matrix_exp(1e-7 * (torch.ones(8, 8).triu(1) - torch.ones(8, 8).tril(-1)).double())
    near, twice = (bures(mean, cov, mean, t @ cov @ t.T) for t in (turn, turn @ turn))
    assert 0 < float(near) < 1e-11
    assert float(twice / near) == pytest.approx(4, rel=1e-3)  # a square grows as the square


def test_pairs_of_classes_are_served_at_once():
    first, second = [gaussian(seed, 3) for seed in (7, 8)], [gaussian(seed, 3) for seed in (9, 10, 11)]
    (mean0, cov0), (mean1, cov1) = (tuple(map(torch.stack, zip(*side, strict=True))) for side in (first, second))
    table = bures(mean0[:, None], cov0[:, None], mean1, cov1)
    assert table.shape == (2, 3) and table.dtype == torch.float64
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            assert float(table[i, j]) == pytest.approx(float(bures(*one, *other)))


def test_roots_of_it_obey_the_triangle_inequality():
    for seed in range(20):
        a, b, c = (gaussian(100 + 3 * seed + k, 3, rank=1 + k) for k in range(3))
        assert bures(*a, *c).sqrt() <= bures(*a, *b).sqrt() + bures(*b, *c).sqrt() + 1e-12


def test_float32_covariances_are_read_in_float64():
    mean, cov = gaussian(12, 20, rank=4)
    rough = (mean.float(), cov.float())
    assert bures(*rough, *rough).dtype == torch.float64
    assert float(bures(mean, cov, *rough)) < 1e-5 * float(cov.trace())


def test_what_is_no_gaussian_is_refused():
    zero, one = torch.zeros(2), torch.eye(2)
    with pytest.raises(UsageError, match="must be square"):
        square_root(torch.zeros(2, 3))
    with pytest.raises(UsageError, match="does not fit"):
        bures(torch.zeros(3), one, zero, one)
    with pytest.raises(DataError, match="one space"):
        bures(zero, one, torch.zeros(3), torch.eye(3))
    with pytest.raises(DataError, match="not symmetric"):
        square_root(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(DataError, match="eigenvalue -1"):
        square_root(-one)
    with pytest.raises(DataError, match="not finite"):
        square_root(math.nan * one)
    with pytest.raises(DataError, match="mean holds"):
        bures(zero + math.inf, one, zero, one)
