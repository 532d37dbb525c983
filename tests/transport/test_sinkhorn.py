"""Entropic plans: marginals, another solver's answer, and both ends of ε."""

import math

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator
from anabranch.transport import Sinkhorn, exact_plan, half_squared_cost, sinkhorn


def problem(rows=20, columns=25, dtype=torch.float64):
    random = generator(0, "sinkhorn")
    x = torch.randn(rows, 2, generator=random, dtype=torch.float64)
    y = torch.randn(columns, 2, generator=random, dtype=torch.float64) + 1
    return half_squared_cost(x, y).to(dtype)


def weights(seed, size):
    values = torch.rand(size, generator=generator(seed, "weights"), dtype=torch.float64) + 0.1
    return values / values.sum()


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_plan_has_its_marginals(epsilon):
    a, b = weights(1, 20), weights(2, 25)
    result = sinkhorn(problem(), epsilon, a, b, iterations=20_000, tolerance=1e-8)
    assert result.converged
    torch.testing.assert_close(result.plan.sum(1), a, atol=1e-7, rtol=0)
    torch.testing.assert_close(result.plan.sum(0), b)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_agrees_with_pot(epsilon):
    a, b, cost = weights(3, 20), weights(4, 25), problem()
    result = sinkhorn(cost, epsilon, a, b, iterations=20_000, tolerance=1e-10)
    expected = ot.sinkhorn(
        a.numpy(), b.numpy(), cost.numpy(), epsilon, method="sinkhorn_log", numItermax=20_000, stopThr=1e-10
    )
    np.testing.assert_allclose(result.plan.numpy(), expected, atol=1e-8)


def test_duals_certify_the_value():
    """At the optimum ⟨C, π⟩ + ε KL(π ‖ a ⊗ b) = ⟨f, a⟩ + ⟨g, b⟩ (the total masses cancel)."""
    a, b, cost, epsilon = weights(5, 20), weights(6, 25), problem(), 0.2
    result = sinkhorn(cost, epsilon, a, b, iterations=20_000, tolerance=1e-12)
    divergence = (result.plan * (result.plan / (a[:, None] * b)).log()).sum()
    primal = result.cost + epsilon * float(divergence)
    assert primal == pytest.approx(float(result.f @ a + result.g @ b), rel=1e-9)


def test_approaches_the_exact_plan_and_the_independent_one():
    cost = problem(30, 30)
    exact = exact_plan(cost).cost
    costs = [sinkhorn(cost, epsilon, iterations=20_000).cost for epsilon in (1.0, 0.1, 0.01)]
    assert costs == sorted(costs, reverse=True)
    assert exact * (1 - 1e-3) <= costs[-1] <= exact * 1.03
    assert sinkhorn(cost, 1e4).cost == pytest.approx(float(cost.mean()), rel=1e-3)


def test_float32_is_stable_at_small_epsilon():
    cost = problem(40, 40, torch.float32)
    result = sinkhorn(cost, 1e-3, iterations=5000, tolerance=5e-3)
    assert result.plan.dtype == result.f.dtype == torch.float32
    assert result.plan.isfinite().all() and result.f.isfinite().all() and result.g.isfinite().all()
    torch.testing.assert_close(result.plan.sum(0), torch.full((40,), 1 / 40), atol=1e-5, rtol=1e-3)
    assert result.converged
    assert result.cost == pytest.approx(exact_plan(cost).cost, rel=0.02)


def test_says_when_it_did_not_converge_and_counts():
    cost = problem()
    short = Sinkhorn(0.01, iterations=20, tolerance=1e-9).solve(cost)
    assert not short.converged and short.iterations == 20 and short.error > 1e-9
    long = Sinkhorn(1.0, iterations=500, tolerance=1e-9).solve(cost)
    assert long.converged and long.iterations < 500 and long.iterations % 10 == 0
    assert long.error <= 1e-9


@pytest.mark.parametrize("iterations", [1, 7, 10, 40])
def test_reported_error_is_that_of_the_plan(iterations):
    result = Sinkhorn(0.05, iterations=iterations, tolerance=0.0).solve(problem())
    assert result.error == pytest.approx(float((result.plan.sum(1) - 1 / 20).abs().sum()), rel=1e-6)


def test_zero_weights_carry_nothing():
    a, b = weights(7, 20), weights(8, 25)
    a[2], b[5] = 0, 0
    a, b = a / a.sum(), b / b.sum()
    result = sinkhorn(problem(), 0.1, a, b, iterations=5000, tolerance=1e-7)
    assert result.converged and result.plan.isfinite().all()
    assert result.plan[2].sum() == 0 and result.plan[:, 5].sum() == 0
    torch.testing.assert_close(result.plan.sum(1), a, atol=1e-6, rtol=0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_refuses_an_epsilon_that_is_not_positive(epsilon):
    with pytest.raises(UsageError, match="epsilon"):
        sinkhorn(problem(), epsilon)


def test_refusals_are_sentences():
    with pytest.raises(UsageError, match="at least 1"):
        Sinkhorn(0.1, iterations=0)
    with pytest.raises(UsageError, match="tolerance"):
        Sinkhorn(0.1, tolerance=-1.0)
    with pytest.raises(DataError, match="not finite"):
        sinkhorn(torch.tensor([[math.inf]]), 0.1)
    with pytest.raises(DataError, match="matrix"):
        sinkhorn(torch.zeros(3), 0.1)
    with pytest.raises(UsageError, match="one weight"):
        sinkhorn(torch.zeros(2, 2), 0.1, torch.ones(3))
    with pytest.raises(UsageError, match="equal totals"):
        sinkhorn(torch.zeros(2, 2), 0.1, torch.ones(2))
    with pytest.raises(UsageError, match="negative"):
        sinkhorn(torch.zeros(2, 2), 0.1, torch.tensor([-1.0, 2.0]))
