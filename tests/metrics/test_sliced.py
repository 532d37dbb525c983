import math

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import (
    projection_counts,
    projection_directions,
    projection_edges,
    sliced_wasserstein2,
    sliced_wasserstein2_floor,
    sliced_wasserstein2_from_counts,
    wasserstein2,
)
from anabranch.seeds import generator

DIRECTIONS = projection_directions(2, 16, generator(0, "directions"))


def cloud(n, *names):
    return torch.randn(n, 2, generator=generator(0, *names), dtype=torch.float64)


def from_counts(samples, target, bins):
    edges = projection_edges(samples, DIRECTIONS, bins)
    return sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, projection_counts(target, DIRECTIONS, edges))


def floor(samples, target, bins=50):
    edges = projection_edges(samples, DIRECTIONS, bins)
    counts = projection_counts(target, DIRECTIONS, edges)
    return sliced_wasserstein2_floor(samples, DIRECTIONS, edges, counts, len(target), generator(0, "floor"))


def mean_square(values):
    return sum(value**2 for value in values) / len(values)


def test_directions_are_unit_vectors_in_all_directions():
    directions = projection_directions(3, 20_000, generator(1))
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    torch.testing.assert_close(
        directions.T @ directions / 20_000, torch.eye(3, dtype=torch.float64) / 3, atol=0.01, rtol=0
    )


def test_a_shift_is_seen_through_its_projections():
    x, shift = cloud(50), torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = math.sqrt((DIRECTIONS @ shift).square().mean())
    assert sliced_wasserstein2(x, x + shift, DIRECTIONS) == pytest.approx(expected)
    assert sliced_wasserstein2(x, x + shift, 7 * DIRECTIONS) == pytest.approx(expected)
    assert sliced_wasserstein2(x, x.flip(0), DIRECTIONS) == pytest.approx(0, abs=1e-12)


def test_in_each_direction_it_is_the_exact_distance_also_for_unequal_sizes():
    x, y = cloud(30, "x"), 2 * cloud(42, "y") + 1
    squares = [wasserstein2(x @ d[:, None], y @ d[:, None]) ** 2 for d in DIRECTIONS]
    assert sliced_wasserstein2(x, y, DIRECTIONS) == pytest.approx(math.sqrt(sum(squares) / len(squares)))
    assert sliced_wasserstein2(x, x.repeat(2, 1), DIRECTIONS) == pytest.approx(0, abs=1e-6)
    assert sliced_wasserstein2(x, y, DIRECTIONS) <= wasserstein2(x, y)


def test_edges_split_the_samples_evenly():
    samples = cloud(1000)
    edges = projection_edges(samples, DIRECTIONS, 8)
    assert edges.shape == (16, 7)
    counts = projection_counts(samples, DIRECTIONS, edges)
    assert counts.dtype == torch.int64 and (counts == 125).all()
    uneven = projection_counts(samples, DIRECTIONS, projection_edges(samples, DIRECTIONS, 7))
    assert uneven.min() >= 142 and uneven.max() <= 143 and (uneven.sum(dim=1) == 1000).all()


def test_an_edge_lies_half_way_between_its_neighbours():
    samples = torch.tensor([[8.0], [0.0], [2.0], [4.0]])
    assert projection_edges(samples, torch.ones(1, 1), 2).tolist() == [[3.0]]
    assert projection_edges(samples, torch.ones(1, 1), 4).tolist() == [[1.0, 3.0, 6.0]]


def test_counts_are_a_histogram_with_open_ends():
    counts = projection_counts(
        torch.tensor([[-9.0], [0.0], [0.5], [1.0], [9.0], [9.0]]),
        torch.tensor([[1.0], [-2.0]]),
        torch.tensor([[0.0, 1.0], [-1.0, 0.0]]),
    )
    assert counts.tolist() == [[1, 2, 3], [2, 2, 2]]


@pytest.mark.parametrize("bins", [2, 7, 100, 1000])
def test_counts_of_the_samples_themselves_are_at_no_distance(bins):
    samples = cloud(1000)
    assert from_counts(samples, samples, bins) == pytest.approx(0, abs=1e-6)


def test_more_bins_come_to_the_true_value():
    samples, target = cloud(4000, "samples"), cloud(4000, "target") * 0.6 + 0.3
    truth = sliced_wasserstein2(samples, target, DIRECTIONS)
    errors = [abs(from_counts(samples, target, bins) - truth) / truth for bins in (4, 32, 1000)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 0.03 and errors[2] < 0.002


def test_counts_see_a_shift():
    samples, shift = cloud(4000), torch.tensor([0.3, 0.4], dtype=torch.float64)
    truth = math.sqrt((DIRECTIONS @ shift).square().mean())
    assert from_counts(samples, samples + shift, 200) == pytest.approx(truth, rel=0.02)


def test_what_lies_beyond_the_samples_counts_as_among_the_outermost():
    samples = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
    direction = torch.ones(1, 1)
    edges = projection_edges(samples, direction, 100)
    counts = projection_counts(samples + 50, direction, edges)
    clamped = sliced_wasserstein2(samples, samples[-1:], direction)
    assert sliced_wasserstein2_from_counts(samples, direction, edges, counts) == pytest.approx(clamped)


def test_a_bin_without_samples_holds_its_mass_at_its_centre():
    samples, direction = torch.zeros(5, 1), torch.ones(1, 1)
    edges = torch.tensor([[1.0, 3.0]])
    for counts, distance in [([[0, 1, 0]], 2.0), ([[0, 0, 4]], 3.0), ([[3, 1, 0]], 1.0)]:
        estimate = sliced_wasserstein2_from_counts(samples, direction, edges, torch.tensor(counts))
        assert estimate == pytest.approx(distance)


def test_silos_counts_add_up_and_only_proportions_matter():
    samples, first, second = cloud(500, "samples"), cloud(300, "first") - 1, cloud(100, "second") + 1
    edges = projection_edges(samples, DIRECTIONS, 50)
    one, two = (projection_counts(held, DIRECTIONS, edges) for held in (first, second))
    pooled = projection_counts(torch.cat([first, second]), DIRECTIONS, edges)
    assert torch.equal(one + two, pooled)
    estimate = sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, pooled)
    mixture = 0.75 * one / 300 + 0.25 * two / 100
    assert sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, mixture) == pytest.approx(estimate)
    noisy = torch.where(pooled == 0, -1, pooled)
    assert sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, noisy) == pytest.approx(estimate)


@pytest.mark.parametrize("count, held_out", [(800, 200), (200, 800)])
def test_samples_as_good_as_the_points_are_at_the_floor(count, held_out):
    pairs = [(cloud(count, "samples", i), cloud(held_out, "points", i)) for i in range(40)]
    reached, told = (mean_square([measure(x, y, 50) for x, y in pairs]) for measure in (from_counts, floor))
    assert told == pytest.approx(reached, rel=0.2)


def test_the_floor_is_one_of_numbers_and_not_of_the_model():
    points = cloud(1000, "points")
    wide = 1.5 * cloud(1000, "samples") + 0.2
    assert from_counts(wide, points, 50) > 5 * floor(wide, points)
    assert floor(wide, points) == pytest.approx(floor(cloud(1000, "samples"), points), rel=0.3)


def test_the_floor_falls_with_the_root_of_the_numbers():
    few, many = (
        mean_square([floor(cloud(n, "samples", i), cloud(n, "points", i)) for i in range(10)]) for n in (200, 3200)
    )
    assert few / many == pytest.approx(16, rel=0.35)


def test_misuse_gets_a_sentence():
    samples = cloud(10)
    edges = projection_edges(samples, DIRECTIONS, 4)
    with pytest.raises(UsageError, match="from 2 to 10 bins"):
        projection_edges(samples, DIRECTIONS, 11)
    with pytest.raises(UsageError, match="points nowhere"):
        sliced_wasserstein2(samples, samples, torch.zeros(1, 2))
    with pytest.raises(UsageError, match="Give \\(k, 2\\)"):
        sliced_wasserstein2(samples, samples, torch.ones(4, 3))
    with pytest.raises(UsageError, match="must not descend"):
        projection_counts(samples, DIRECTIONS, edges.flip(1))
    with pytest.raises(UsageError, match="16 directions"):
        projection_counts(samples, DIRECTIONS, edges[:3])
    with pytest.raises(UsageError, match="do not fit the edges"):
        sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, torch.ones(16, 3))
    with pytest.raises(DataError, match="hold no points"):
        sliced_wasserstein2_from_counts(samples, DIRECTIONS, edges, torch.zeros(16, 4))
    with pytest.raises(UsageError, match="no floor without one"):
        sliced_wasserstein2_floor(samples, DIRECTIONS, edges, torch.ones(16, 4), 0, generator(0))
