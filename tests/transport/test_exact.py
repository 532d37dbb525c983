"""Exact plans against closed forms and against the other solver."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from anabranch.errors import AnabranchError, DataError, UsageError
from anabranch.seeds import generator
from anabranch.transport import Plan, assignment, exact_cost, exact_plan, half_squared_cost, sample_pairs
from anabranch.transport import _exact as exact


def points(seed, count, dimension, spread=1.0):
    return spread * torch.randn(count, dimension, generator=generator(seed, "exact"), dtype=torch.float64)


def total(cost, index):
    return float(cost[torch.arange(len(index)), index].sum())


def reference(cost):
    rows, columns = linear_sum_assignment(cost.numpy())
    return float(cost.numpy()[rows, columns].sum())


@pytest.mark.parametrize("dimension", [1, 2, 64])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 5), (95, 95), (96, 96), (200, 200), (5, 9), (256, 257), (256, 512), (300, 1200)]
)
def test_assignment_is_one_to_one_and_minimal(shape, dimension):
    cost = half_squared_cost(points(0, shape[0], dimension), points(1, shape[1], dimension, 2.0))
    index = assignment(cost)
    assert index.shape == (shape[0],) and len(index.unique()) == shape[0]
    assert total(cost, index) == pytest.approx(reference(cost), rel=1e-12)


@pytest.mark.parametrize("dimension", [2, 30])
def test_assignment_agrees_with_the_network_simplex(dimension):
    cost = half_squared_cost(points(2, 150, dimension), points(3, 150, dimension))
    weights = np.full(150, 1 / 150)
    assert total(cost, assignment(cost)) / 150 == pytest.approx(ot.emd2(weights, weights, cost.numpy()), rel=1e-9)


@pytest.mark.parametrize("shape", [(120, 120), (256, 400)])
def test_hard_costs_stay_exact(monkeypatch, shape):
    """Ties, negative and huge costs, outliers: the duals may be poor there, the answer may not."""
    monkeypatch.setattr(exact, "_worth_priming", lambda matrix, contested: True)
    random = generator(4, "exact")
    rough = torch.randn(shape, generator=random, dtype=torch.float64)
    for cost in (
        torch.randint(3, shape, generator=random).double(),
        torch.ones(shape, dtype=torch.float64),
        torch.zeros(shape, dtype=torch.float64),
        rough - 50,
        rough * 1e30,
        rough * 1e-30,
        (rough * 4).exp(),
        torch.where(rough > 2.5, 1e9, rough),
        torch.where(rough > 0, rough, 1e6),
        rough + 1e5 * torch.arange(shape[1]),
    ):
        index = assignment(cost)
        assert len(index.unique()) == shape[0]
        assert total(cost, index) == pytest.approx(reference(cost), rel=1e-9, abs=1e-10 * float(cost.abs().max()))


@pytest.mark.parametrize("wrong_duals", [-1.0, -100.0])
def test_useless_duals_cost_time_but_not_exactness(monkeypatch, wrong_duals):
    noise = torch.rand(400, generator=generator(5, "exact"), dtype=torch.float64).numpy()
    monkeypatch.setattr(exact, "_worth_priming", lambda matrix, contested: True)
    monkeypatch.setattr(exact, "_column_duals", lambda matrix: wrong_duals * noise[: matrix.shape[1]])
    for columns in (256, 300, 400):
        cost = half_squared_cost(points(6, 256, 2), points(7, columns, 2))
        assert total(cost, assignment(cost)) == pytest.approx(reference(cost), rel=1e-12)


def test_primed_rectangles_are_minimal(monkeypatch):
    monkeypatch.setattr(exact, "_worth_priming", lambda matrix, contested: True)
    for columns in (101, 150, 400):
        for dimension in (1, 2, 64):
            cost = half_squared_cost(points(30, 100, dimension), points(31, columns, dimension, 0.3))
            index = assignment(cost)
            assert len(index.unique()) == 100
            assert total(cost, index) == pytest.approx(reference(cost), rel=1e-12)


def test_large_squares_and_crowded_rectangles_are_primed():
    assert exact._worth_priming(np.zeros((200, 200)), False) and not exact._worth_priming(np.zeros((50, 50)), False)
    crowded = half_squared_cost(points(32, 200, 2, 5.0), points(33, 400, 2, 0.1)).numpy()
    spread = half_squared_cost(points(32, 200, 2), points(33, 400, 2)).numpy()
    assert exact._worth_priming(crowded, False) and not exact._worth_priming(spread, False)
    assert exact._worth_priming(spread, True)  # told that its rows compete


def test_approximate_duals_are_near_the_optimum():
    """They must be worth their time: within 2 % of the optimal dual value, and below it."""
    cost = half_squared_cost(points(8, 256, 2), points(9, 256, 2, 3.0))
    duals = torch.as_tensor(exact._column_duals(cost.numpy()))
    value = float((cost - duals).min(1).values.sum() + duals.sum())
    assert 0.98 * reference(cost) <= value <= reference(cost) * (1 + 1e-9)


def test_assignment_in_threads_gives_the_same():
    costs = [half_squared_cost(points(seed, 200, 2), points(seed + 100, 200, 2)) for seed in range(8)]
    alone = [assignment(cost) for cost in costs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(assignment, costs))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_on_the_line_the_plan_sorts():
    x, y = points(10, 130, 1), points(11, 130, 1, 2.0) + 1
    sorted_cost = float((x.sort(0).values - y.sort(0).values).square().mean() / 2)
    assert exact_cost(x, y) == pytest.approx(sorted_cost, rel=1e-12)
    order = assignment(half_squared_cost(x, y))
    assert torch.equal(y[order][x[:, 0].argsort()], y.sort(0).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shift_costs_half_its_square(dtype):
    x = points(12, 100, 3).to(dtype)
    shift = torch.tensor([3.0, -4.0, 1.0], dtype=dtype)
    assert exact_cost(x, x + shift) == pytest.approx(13.0, rel=1e-5)
    assert exact_cost(x, x[torch.randperm(100, generator=generator(13, "exact"))]) == 0.0


def test_different_sizes():
    x = points(14, 40, 2)
    assert exact_cost(x, x.repeat(3, 1)) == pytest.approx(0.0, abs=1e-12)
    assert exact_cost(x[:1], x) == pytest.approx(float((x - x[0]).square().sum(1).mean() / 2))


def test_gaussians_approach_the_closed_form():
    """½W₂² of N(0, I) and N(m, s²I) in d = 2 is ½‖m‖² + (1 − s)²; sampling noise remains."""
    x, y = points(15, 1000, 2), points(16, 1000, 2, 2.0) + 3
    assert exact_cost(x, y) == pytest.approx(10.0, rel=0.05)


def test_weighted_plan_has_its_marginals_and_is_minimal():
    random = generator(17, "exact")
    cost = half_squared_cost(points(18, 12, 2), points(19, 17, 2))
    a = torch.rand(12, generator=random, dtype=torch.float64)
    b = torch.rand(17, generator=random, dtype=torch.float64)
    a[3] = 0
    a, b = a / a.sum(), b / b.sum()
    plan = exact_plan(cost, a, b)
    torch.testing.assert_close(plan.matrix.sum(1), a)
    torch.testing.assert_close(plan.matrix.sum(0), b)
    assert (plan.matrix >= 0).all()
    _, log = ot.emd(a.numpy(), b.numpy(), cost.numpy(), log=True)
    u, v = torch.as_tensor(log["u"]), torch.as_tensor(log["v"])
    assert (u[:, None] + v <= cost + 1e-9).all()
    assert plan.cost == pytest.approx(float(u @ a + v @ b), rel=1e-9)
    assert plan.cost == pytest.approx(float((plan.matrix * cost).sum()))


def test_equal_weights_give_a_permutation_in_the_input_dtype():
    cost = half_squared_cost(points(20, 20, 2), points(21, 20, 2)).float()
    plan = exact_plan(cost)
    assert plan.matrix.dtype == torch.float32
    assert torch.equal(plan.pairs.index0, torch.arange(20))
    assert torch.equal(plan.pairs.index1, assignment(cost))
    given = torch.full((20,), 1 / 20)
    assert exact_plan(cost, given, given).cost == pytest.approx(plan.cost, rel=1e-6)


def test_without_pot_equal_weights_are_served_and_others_refused(monkeypatch):
    cost = half_squared_cost(points(22, 6, 2), points(23, 9, 2))
    expected = exact_plan(cost)
    monkeypatch.setitem(sys.modules, "ot", None)
    plan = exact_plan(cost)
    assert plan.cost == pytest.approx(expected.cost, rel=1e-12)
    torch.testing.assert_close(plan.matrix.sum(1), torch.full((6,), 1 / 6, dtype=torch.float64))
    torch.testing.assert_close(plan.matrix.sum(0), torch.full((9,), 1 / 9, dtype=torch.float64))
    with pytest.raises(AnabranchError, match="POT"):
        exact_plan(cost, torch.full((6,), 1 / 6), torch.full((9,), 1 / 9))
    with pytest.raises(AnabranchError, match="as many points"):
        exact_plan(torch.zeros(101, 103))


def test_sampling_without_replacement_uses_every_pair_once():
    plan = exact_plan(half_squared_cost(points(24, 30, 2), points(25, 30, 2)))
    drawn = sample_pairs(plan, 30, generator(26, "exact"))
    order = drawn.index0.argsort()
    assert torch.equal(drawn.index0[order], plan.pairs.index0)
    assert torch.equal(drawn.index1[order], plan.pairs.index1)
    assert not torch.equal(order, torch.arange(30))


def test_sampling_with_replacement_follows_the_plan():
    matrix = torch.tensor([[0.1, 0.0, 0.3], [0.0, 0.4, 0.2]])
    drawn = sample_pairs(Plan(matrix, 0.0), 20_000, generator(27, "exact"), replacement=True)
    counts = torch.zeros(2, 3).index_put_((drawn.index0, drawn.index1), torch.ones(20_000), accumulate=True)
    torch.testing.assert_close(counts / 20_000, matrix, atol=0.015, rtol=0)
    assert counts[0, 1] == counts[1, 0] == 0


@pytest.mark.parametrize("replacement", [True, False])
def test_sampling_follows_from_the_generator(replacement):
    """By inverse transform, or by the earliest of exponential clocks."""
    matrix = points(29, 5, 4).abs()
    weights, random = matrix.double().reshape(-1), generator(30, "exact")
    if replacement:
        draws = torch.rand(9, generator=random, dtype=torch.float64) * weights.sum()
        cells = (weights.cumsum(0) <= draws[:, None]).sum(1)
    else:
        clocks = torch.empty(20, dtype=torch.float64).exponential_(generator=random)
        cells = (clocks / weights).argsort()[:9]
    drawn = sample_pairs(Plan(matrix, 0.0), 9, generator(30, "exact"), replacement)
    assert torch.equal(4 * drawn.index0 + drawn.index1, cells)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("plan", ["cpu", "cuda"])
@pytest.mark.parametrize("draws", ["cpu", "cuda"])
def test_plan_and_generator_may_be_on_different_devices(plan, draws, replacement):
    matrix = torch.eye(6, device=plan) / 6
    drawn = sample_pairs(Plan(matrix, 0.0), 6, generator(31, "exact", device=draws), replacement)
    assert drawn.index0.device.type == plan and torch.equal(drawn.index0, drawn.index1)


def test_first_draw_without_replacement_follows_the_plan():
    matrix = torch.tensor([[0.1, 0.0], [0.3, 0.6]])
    random = generator(28, "exact")
    draws = [sample_pairs(Plan(matrix, 0.0), 1, random) for _ in range(4000)]
    cells = torch.tensor([2 * int(draw.index0) + int(draw.index1) for draw in draws])
    torch.testing.assert_close(cells.bincount(minlength=4) / 4000, matrix.reshape(-1), atol=0.03, rtol=0)


def test_refusals_are_sentences():
    with pytest.raises(UsageError, match="transpose"):
        assignment(torch.zeros(3, 2))
    with pytest.raises(DataError, match="not finite"):
        assignment(torch.tensor([[float("nan")]]))
    with pytest.raises(DataError, match="matrix"):
        exact_plan(torch.zeros(3))
    with pytest.raises(UsageError, match="one weight"):
        exact_plan(torch.zeros(3, 2), torch.ones(2))
    with pytest.raises(UsageError, match="negative"):
        exact_plan(torch.zeros(2, 2), torch.tensor([-1.0, 2.0]), torch.ones(2) / 2)
    with pytest.raises(UsageError, match="equal totals"):
        exact_plan(torch.zeros(2, 2), torch.ones(2), torch.ones(2) / 2)
    with pytest.raises(UsageError, match="replacement=True"):
        sample_pairs(Plan(torch.eye(2) / 2, 0.0), 3, generator(0))


def test_kernels_hold_no_numbers_that_processors_are_slow_with():
    cost = np.linspace(0, 3, 40_000, dtype=np.float32).reshape(200, 200)
    nowhere = np.zeros(200, np.float32)
    kernel = exact._kernel(cost, nowhere, nowhere, np.float32(0.02))
    wanted = np.exp(-cost.astype(np.float64) / 0.02)
    assert ((wanted > 0) & (wanted < np.finfo(np.float32).tiny)).sum() > 1000  # of which there would be many
    assert (kernel[kernel > 0] >= np.finfo(np.float32).tiny).all()
    np.testing.assert_allclose(kernel, wanted, rtol=2e-5, atol=1e-34)
