import math

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import integrate
from anabranch.seeds import generator

PRICES = {"euler": 1, "midpoint": 2, "heun": 2, "rk4": 4}
ORDERS = {"euler": 1, "midpoint": 2, "heun": 2, "rk4": 4}
MATRIX = torch.tensor([[-0.5, 2.0], [-2.0, -0.3]], dtype=torch.float64)


def start():
    return torch.randn(16, 2, generator=generator(0), dtype=torch.float64)


def linear(x, t):
    return x @ MATRIX.T


def exact():
    return start() @ torch.linalg.matrix_exp(MATRIX).T


@pytest.mark.parametrize("solver", PRICES)
@pytest.mark.parametrize("steps", [1, 3])
def test_exactly_nfe_evaluations(solver, steps):
    calls = []

    def velocity(x, t):
        assert t.dim() == 0 and not torch.is_grad_enabled()
        calls.append(float(t))
        return x

    flow = integrate(velocity, start(), nfe=steps * PRICES[solver], solver=solver, keep_path=True)
    assert len(calls) == flow.evaluations == steps * PRICES[solver]
    assert min(calls) == 0 and max(calls) <= 1
    assert flow.path.shape == (steps + 1, 16, 2)
    assert torch.equal(flow.path[0], start()) and torch.equal(flow.path[-1], flow.x1)
    assert torch.equal(flow.times, torch.linspace(0, 1, steps + 1, dtype=torch.float64))


def test_euler_looks_at_the_left_end_of_each_step():
    times = []
    integrate(lambda x, t: times.append(float(t)) or x, start(), nfe=4)
    assert times == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("solver", PRICES)
def test_the_order_of_convergence(solver):
    errors = [
        float((integrate(linear, start(), steps * PRICES[solver], solver).x1 - exact()).norm()) for steps in (64, 128)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(ORDERS[solver], abs=0.1)


@pytest.mark.parametrize("solver", ["midpoint", "heun", "rk4"])
def test_a_velocity_of_time_alone_is_integrated_to_its_order(solver):
    flow = integrate(lambda x, t: 3 * t.square() * torch.ones_like(x), start(), 100 * PRICES[solver], solver)
    torch.testing.assert_close(flow.x1, start() + 1, rtol=0, atol=1e-12 if solver == "rk4" else 1e-4)


@pytest.mark.parametrize("solver", PRICES)
def test_one_step_is_exact_for_a_constant_velocity(solver):
    move = torch.tensor([1.0, -2.0], dtype=torch.float64)
    x1 = integrate(lambda x, t: move.expand_as(x), start(), PRICES[solver], solver).x1
    torch.testing.assert_close(x1, start() + move)


def test_dopri5_meets_its_tolerance_and_counts():
    calls = []
    flow = integrate(lambda x, t: calls.append(1) or linear(x, t), start(), None, "dopri5")
    torch.testing.assert_close(flow.x1, exact(), rtol=1e-4, atol=1e-4)
    assert flow.evaluations == len(calls) > 6 and flow.path is None
    finer = integrate(linear, start(), None, "dopri5", atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(finer.x1, exact(), rtol=1e-8, atol=1e-8)
    assert finer.evaluations > flow.evaluations


def test_dopri5_keeps_a_path_at_the_times_it_names():
    flow = integrate(linear, start(), None, "dopri5", keep_path=True, atol=1e-8, rtol=1e-8)
    half = start() @ torch.linalg.matrix_exp(MATRIX / 2).T
    assert flow.path.shape == (101, 16, 2) and float(flow.times[50]) == 0.5
    torch.testing.assert_close(flow.path[50], half, rtol=1e-5, atol=1e-5)


def test_float32_stays_float32_and_gradients_stay_out():
    x0 = torch.ones(3, 2, requires_grad=True)
    for solver, nfe in [("rk4", 16), ("dopri5", None)]:
        x1 = integrate(lambda x, t: -x, x0, nfe, solver).x1
        assert x1.dtype == torch.float32 and not x1.requires_grad
        torch.testing.assert_close(x1, torch.full((3, 2), math.exp(-1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nfe", [0, -1, 2.0, True, None, "10"])
def test_a_number_of_evaluations_that_is_none_is_refused(nfe):
    with pytest.raises(UsageError, match="whole number"):
        integrate(linear, start(), nfe)


@pytest.mark.parametrize(("solver", "nfe", "above"), [("midpoint", 3, 4), ("heun", 1, 2), ("rk4", 10, 12)])
def test_a_number_that_cannot_be_met_names_the_next(solver, nfe, above):
    with pytest.raises(UsageError, match=f"Give nfe = {above}\\."):
        integrate(linear, start(), nfe, solver)


def test_other_misuse_gets_a_sentence():
    with pytest.raises(UsageError, match="did you mean 'euler'"):
        integrate(linear, start(), 1, "eular")
    with pytest.raises(UsageError, match="nfe=None"):
        integrate(linear, start(), 10, "dopri5")
    with pytest.raises(UsageError, match="shape of its points"):
        integrate(lambda x, t: x[:, :1], start(), 1)
    with pytest.raises(UsageError, match="floating-point"):
        integrate(linear, torch.zeros(2, 2, dtype=torch.int64), 1)
