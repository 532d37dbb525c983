"""Geodesics against closed forms and against POT."""

import math

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.transport import (
    Measure,
    Shared,
    barycentres,
    crossing,
    interpolate,
    lower_bound,
    measure,
    profile,
    spread,
    thinned,
    wasserstein,
)


def cloud(size, dimension=2, seed=0, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
    weight = torch.rand(size, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return measure(points, None if weight is None else weight / weight.sum())


def by_pot(x, y, power):
    cost = ot.dist(x.points.numpy(), y.points.numpy(), "euclidean") ** power
    return ot.emd2(x.weight.numpy(), y.weight.numpy(), cost) ** (1 / power)


@pytest.mark.parametrize("power", [1, 1.5, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [(20, 20), (30, 17)])
def test_the_distance_is_that_of_pot(power, weighted, sizes):
    x, y = cloud(sizes[0], seed=1, weighted=weighted), cloud(sizes[1], seed=2, weighted=weighted)
    assert float(wasserstein(x, y, power)) == pytest.approx(by_pot(x, y, power), rel=1e-9)


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("exact", [True, False])
def test_equal_uniform_supports_lie_on_the_geodesic_either_way(power, exact):
    x, y = cloud(25, seed=1), cloud(25, seed=2)
    way = interpolate(x, y, 0.3, power, exact=exact)
    whole = float(way.distance)
    assert float(wasserstein(x, way.measure, power)) == pytest.approx(0.3 * whole, rel=1e-9)
    assert float(wasserstein(way.measure, y, power)) == pytest.approx(0.7 * whole, rel=1e-9)


def test_for_equal_uniform_supports_both_interpolations_are_one_measure():
    x, y = cloud(25, seed=1), cloud(25, seed=2)
    exact, mean = (interpolate(x, y, 0.4, exact=how).measure for how in (True, False))
    assert torch.equal(exact.weight, mean.weight)
    assert torch.allclose(exact.points, mean.points, atol=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_exact_interpolation_keeps_weights_and_divides_the_distance(power):
    x, y = cloud(30, seed=1, weighted=True), cloud(13, seed=2, weighted=True)
    way = interpolate(x, y, 0.7, power, exact=True)
    assert float(way.measure.weight.sum()) == pytest.approx(1, abs=1e-12)
    parts = wasserstein(x, way.measure, power) + wasserstein(way.measure, y, power)
    assert float(parts) == pytest.approx(by_pot(x, y, power), rel=1e-9)


@pytest.mark.parametrize("sizes", [(30, 7), (7, 30)])
def test_the_smaller_support_and_its_weights_are_kept(sizes):
    x, y = cloud(sizes[0], seed=1, weighted=True), cloud(sizes[1], seed=2, weighted=True)
    small = min(x, y, key=len)
    found = interpolate(x, y, 0.5).measure
    assert len(found) == 7 and torch.equal(found.weight, small.weight)
    means = [m.weight @ m.points for m in (x, y)]
    assert torch.allclose(found.weight @ found.points, (means[0] + means[1]) / 2, atol=1e-9)


def test_weights_count_in_barycentres():
    x, y = measure([[0.0], [10.0]], [0.8, 0.2]), measure([[0.0], [1.0], [10.0]], [0.6, 0.2, 0.2])
    assert barycentres(crossing(x, y), x, y).flatten().tolist() == pytest.approx([0.25, 10.0])  # (0.6·0 + 0.2·1) / 0.8


def test_numpy_is_taken_as_well():
    x = measure(np.zeros((3, 2)), np.array([0.5, 0.25, 0.25]))
    assert float(wasserstein(x, measure(np.array([[3.0, 4.0]])))) == pytest.approx(5)


@pytest.mark.parametrize("power", [1, 1.5, 2])
def test_the_gradient_is_that_of_finite_differences(power):
    x, y = cloud(12, seed=1, weighted=True), cloud(9, seed=2)
    points = x.points.clone().requires_grad_()
    wasserstein(measure(points, x.weight), y, power).backward()
    step, found = 1e-6, points.grad[4, 1]
    values = []
    for sign in (-1, 1):
        moved = x.points.clone()
        moved[4, 1] += sign * step
        values.append(float(wasserstein(measure(moved, x.weight), y, power)))
    assert float(found) == pytest.approx((values[1] - values[0]) / (2 * step), rel=1e-5)


def test_the_gradient_passes_through_an_interpolation():
    x, y = cloud(6, seed=1), cloud(18, seed=2)
    points = x.points.clone().requires_grad_()
    interpolate(measure(points), y, 0.25).measure.points.sum().backward()
    assert torch.allclose(points.grad, torch.full_like(points.grad, 0.75))


def test_equal_sets_are_at_distance_zero_and_have_a_gradient_of_zero():
    x = cloud(8)
    points = x.points.clone().requires_grad_()
    found = wasserstein(measure(points), x, 1)
    found.backward()
    assert float(found.detach()) == 0 and float(points.grad.abs().max()) == 0


def test_thinning_keeps_the_mass_and_the_heaviest():
    x = measure([[0.0], [0.1], [5.0], [5.1]], [0.4, 0.1, 0.3, 0.2])
    found = thinned(x, 2)
    assert found.points.tolist() == [[0.0], [5.0]] and found.weight.tolist() == pytest.approx([0.5, 0.5])


def test_tiny_weights_are_not_lost():
    weight = torch.full((5,), 1e-7, dtype=torch.float64)
    weight[0] = 1 - 4e-7
    x = measure(cloud(5, seed=1).points, weight)
    found = interpolate(x, cloud(9, seed=2), 0.5, exact=True).measure
    assert float(found.weight.sum()) == pytest.approx(1, abs=1e-12)
    assert len(interpolate(x, cloud(9, seed=2), 0.5).measure) == 5


def test_spread_is_what_centres_cannot_follow():
    x, y = measure([[0.0], [10.0]]), measure([[-1.0], [1.0], [9.0], [11.0]])
    plan = crossing(x, y)
    assert spread(plan, x, y) == pytest.approx(1)
    assert float(wasserstein(x, y)) ** 2 == pytest.approx(1)


def test_a_start_changes_nothing_but_the_way():
    x, y = cloud(60, seed=1), cloud(7, seed=2)
    first = crossing(x, y)
    again = crossing(x, y, start=first.height + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(0)))
    costs = [
        float((plan.mass * (x.points[plan.source] - y.points[plan.target]).square().sum(1)).sum())
        for plan in (first, again)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


@pytest.mark.parametrize("power", [1, 1.5, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_lower_bound_is_one(power, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = cloud(50, 6, seed, weighted=True), cloud(70, 6, seed + 100)
    y = measure(y.points * 2 + 1)
    directions = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q[:4]
    profiles = profile(x, directions, 8), profile(y, directions, 8)
    means = x.weight @ x.points, y.weight @ y.points
    assert 0 < lower_bound(directions, profiles, means, power) <= float(wasserstein(x, y, power))


def test_the_lower_bound_is_tight_for_a_shift_and_along_one_line():
    x = cloud(40, 5)
    shift = torch.arange(5, dtype=torch.float64)
    y = measure(x.points + shift)
    along = torch.eye(5, dtype=torch.float64)[:2]
    found = lower_bound(along, (profile(x, along, 4), profile(y, along, 4)), (x.points.mean(0), y.points.mean(0)))
    assert found == pytest.approx(float(shift.norm()), rel=1e-5)
    line, wide = cloud(64, 1), measure(cloud(64, 1).points * 3)
    one = torch.ones(1, 1, dtype=torch.float64)
    found = lower_bound(one, (profile(line, one, 64), profile(wide, one, 64)), (torch.zeros(1), torch.zeros(1)))
    assert found == pytest.approx(float(wasserstein(line, wide)), rel=1e-5)


def test_portions_of_a_profile_hold_equal_mass():
    x = measure([[0.0], [1.0]], [0.25, 0.75])
    found = profile(x, torch.ones(1, 1), 2)
    assert found[0].tolist() == pytest.approx([0.5, 1.0])  # the first half of the mass is half at 0, half at 1


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: interpolate(cloud(3), cloud(3), 0.0), UsageError, "strictly inside"),
        (lambda: interpolate(cloud(3), cloud(3), 1.0), UsageError, "strictly inside"),
        (lambda: interpolate(cloud(3), cloud(3), math.nan), UsageError, "strictly inside"),
        (lambda: wasserstein(cloud(3), cloud(3), 0.5), UsageError, "p ≥ 1"),
        (lambda: wasserstein(cloud(3), cloud(3, 4)), DataError, "2 dimensions, the other in 4"),
        (lambda: measure([[0.0], [1.0]], [0.5, 0.6]), UsageError, "sum to 1.1"),
        (lambda: measure([[0.0], [1.0]], [1.5, -0.5]), UsageError, "negative"),
        (lambda: measure([[0.0], [1.0]], [1.0]), UsageError, "2 points need one weight each"),
        (lambda: measure(torch.zeros(0, 2)), DataError, "no points"),
        (lambda: measure([[math.inf]]), DataError, "not finite"),
        (lambda: thinned(cloud(3), 0), UsageError, "0 atoms"),
        (
            lambda: lower_bound(torch.ones(2, 2), (torch.ones(2, 1),) * 2, (torch.ones(2),) * 2),
            UsageError,
            "orthonormal",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_coordinates_in_common_change_nothing_but_the_time():
    generator = torch.Generator().manual_seed(0)
    table, index = torch.randn(3, 4, generator=generator, dtype=torch.float64), torch.arange(40) % 3
    points = torch.cat([torch.randn(40, 2, generator=generator, dtype=torch.float64), table[index]], 1)
    plain = measure(points)
    shared = Measure(plain.points, plain.weight, Shared(table, index))
    columns = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    assert torch.allclose(shared.times(columns), plain.times(columns), atol=1e-12)
    xi = measure(columns)
    found = [interpolate(x, xi, 0.4) for x in (plain, shared)]
    assert torch.allclose(found[0].measure.points, found[1].measure.points)
    assert float(found[0].distance) == pytest.approx(float(found[1].distance), rel=1e-12)
