import math
from itertools import permutations

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.metrics import (
    cost_ratio,
    optimal_cost,
    source_marginal_error,
    total_variation_from_uniform,
    uniform_total_variation,
    usage,
    wasserstein2,
)
from anabranch.seeds import generator


def cloud(n, d, *names):
    return torch.randn(n, d, generator=generator(0, *names), dtype=torch.float64)


def test_the_optimal_cost_is_the_least_over_all_matchings():
    x0, x1 = cloud(6, 2, "x0"), cloud(6, 2, "x1") + 1
    costs = [float((x0 - x1[list(order)]).square().sum(dim=1).mean()) / 2 for order in permutations(range(6))]
    assert optimal_cost(x0, x1) == pytest.approx(min(costs))
    assert optimal_cost(x0, x1) == pytest.approx(wasserstein2(x0, x1) ** 2 / 2)


def test_the_ratio_is_one_for_the_optimal_pairs_and_known_for_independent_ones():
    shift = torch.tensor([3.0, 0.0], dtype=torch.float64)
    x0 = cloud(300, 2)
    optimum = optimal_cost(x0, x0 + shift)
    assert cost_ratio(x0, x0 + shift, optimum) == pytest.approx(1)
    # independent pairs: ½ (‖shift‖² + 2d) over ½ ‖shift‖²
    many = cloud(100_000, 2, "a"), cloud(100_000, 2, "b") + shift
    assert cost_ratio(*many, optimum) == pytest.approx(13 / 9, rel=0.02)


def test_usage_and_its_distance_from_uniform():
    index = torch.tensor([0, 0, 0, 2, 3, 3])
    assert usage(index, 5).tolist() == pytest.approx([1 / 2, 0, 1 / 6, 1 / 3, 0])
    assert total_variation_from_uniform(index, 5) == pytest.approx((1 / 2 - 1 / 5) + (1 / 3 - 1 / 5))
    assert total_variation_from_uniform(torch.arange(10).repeat(3), 10) == pytest.approx(0)
    assert total_variation_from_uniform(torch.zeros(7, dtype=torch.int64), 10) == pytest.approx(0.9)


@pytest.mark.parametrize(("count", "draws"), [(2, 5), (7, 3), (10, 200), (1, 4)])
def test_chance_alone_by_summing_the_binomial(count, draws):
    p = 1 / count
    deviation = sum(math.comb(draws, k) * p**k * (1 - p) ** (draws - k) * abs(k - draws * p) for k in range(draws + 1))
    assert uniform_total_variation(count, draws) == pytest.approx(count * deviation / (2 * draws))


def test_chance_alone_at_twenty_draws_a_point():
    expected = uniform_total_variation(2000, 40_000)
    assert expected == pytest.approx(0.089, abs=5e-4)
    index = torch.randint(2000, (40_000,), generator=generator(0, "draws"))
    assert total_variation_from_uniform(index, 2000) == pytest.approx(expected, rel=0.05)


def test_a_tilted_source_is_found():
    reference, fair = cloud(300, 2, "reference"), cloud(300, 2, "fair")
    tilted = fair + torch.tensor([1.0, 0.0], dtype=torch.float64)
    floor, error = source_marginal_error(fair, reference), source_marginal_error(tilted, reference)
    assert 1 - floor <= error <= 1 + floor  # the triangle inequality: the tilt itself is 1
    assert error > 3 * floor


def test_misuse_gets_a_sentence():
    with pytest.raises(UsageError, match="positive"):
        cost_ratio(torch.zeros(2, 1), torch.zeros(2, 1), 0.0)
    with pytest.raises(UsageError, match="as many x0 as x1"):
        cost_ratio(torch.zeros(2, 1), torch.zeros(1, 1), 1.0)
    with pytest.raises(UsageError, match="numbered from 0"):
        usage(torch.tensor([0, 5]), 5)
    with pytest.raises(UsageError, match="numbered from 0"):
        usage(torch.tensor([-1]), 5)
    with pytest.raises(UsageError, match="whole numbers"):
        usage(torch.tensor([0.5]), 5)
    with pytest.raises(UsageError, match="one or more"):
        uniform_total_variation(5, 0)
