"""c-transforms: closed forms, duality with the exact plan, the envelope theorem."""

import math

import ot
import pytest
import torch

from anabranch.errors import UsageError
from anabranch.seeds import generator
from anabranch.transport import (
    c_transform,
    c_transform_descent,
    exact_plan,
    half_squared_cost,
    nearest,
    semidual,
    soft_c_transform,
)


def setting(seed=0, candidates=12, targets=9):
    random = generator(seed, "ctransform")
    x0 = torch.randn(candidates, 2, generator=random, dtype=torch.float64)
    x1 = torch.randn(targets, 2, generator=random, dtype=torch.float64) + 1
    f = torch.randn(candidates, generator=random, dtype=torch.float64)
    return x0, x1, f


def test_hard_transform_is_the_minimum_and_agrees_with_nearest():
    x0, x1, f = setting()
    found = c_transform(half_squared_cost(x0, x1), f)
    by_hand = torch.stack([((x0 - y).square().sum(1) / 2 - f).min() for y in x1])
    torch.testing.assert_close(found.value, by_hand)
    chunked = nearest(x1, x0, offset=f)
    assert torch.equal(found.index, chunked.index)
    torch.testing.assert_close(found.value, chunked.value)


def test_semidual_at_the_optimal_duals_is_the_transport_cost():
    x0, x1, _ = setting(1, 15, 15)
    cost = half_squared_cost(x0, x1)
    weights = torch.full((15,), 1 / 15, dtype=torch.float64).numpy()
    _, log = ot.emd(weights, weights, cost.numpy(), log=True)
    f = torch.as_tensor(log["u"])
    assert float(semidual(f, c_transform(cost, f).value)) == pytest.approx(exact_plan(cost).cost, rel=1e-9)


def test_semidual_never_exceeds_the_transport_cost():
    x0, x1, _ = setting(2, 15, 15)
    cost = half_squared_cost(x0, x1)
    best = exact_plan(cost).cost
    for seed in range(20):
        f = torch.randn(15, generator=generator(seed, "any f"), dtype=torch.float64)
        assert float(semidual(f, c_transform(cost, f).value)) <= best + 1e-12


def test_hard_gradient_is_minus_one_at_the_argmin():
    x0, x1, f = setting(3)
    f.requires_grad_()
    found = c_transform(half_squared_cost(x0, x1), f)
    found.value.sum().backward()
    assert torch.equal(f.grad, -found.index.bincount(minlength=12).double())


def test_transforms_pass_a_gradient_check():
    x0, x1, f = setting(4)
    cost = half_squared_cost(x0, x1).requires_grad_()
    f.requires_grad_()
    assert torch.autograd.gradcheck(lambda c, v: c_transform(c, v).value, (cost, f))
    assert torch.autograd.gradcheck(lambda c, v: soft_c_transform(c, v, 0.3).value, (cost, f))


def test_soft_weights_are_the_gradient_and_sum_to_one():
    x0, x1, f = setting(5)
    f.requires_grad_()
    soft = soft_c_transform(half_squared_cost(x0, x1), f, 0.2)
    soft.value.sum().backward()
    weights = soft.log_weights.exp()
    torch.testing.assert_close(weights.sum(0), torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(f.grad, -weights.sum(1).detach())


def test_soft_is_above_hard_and_tends_to_it():
    x0, x1, f = setting(6)
    cost = half_squared_cost(x0, x1)
    hard = c_transform(cost, f)
    for epsilon in (1.0, 0.1, 1e-2, 1e-4):
        soft = soft_c_transform(cost, f, epsilon)
        gap = soft.value - hard.value
        assert (gap >= -1e-12).all() and (gap <= epsilon * math.log(12) + 1e-12).all()
    assert torch.equal(soft.log_weights.argmax(0), hard.index)
    torch.testing.assert_close(soft.value, hard.value, atol=1e-3, rtol=0)


def test_soft_is_stable_in_float32():
    cost = torch.tensor([[1000.0, 0.0], [2000.0, 5.0]])
    soft = soft_c_transform(cost, torch.zeros(2), 1e-3)
    assert soft.value.isfinite().all() and soft.value.dtype == torch.float32
    torch.testing.assert_close(soft.value, torch.tensor([1000.0, 0.0]), atol=1e-2, rtol=0)


def test_soft_of_a_constant_potential_takes_it_off():
    x0, x1, f = setting(7)
    cost = half_squared_cost(x0, x1)
    shifted = soft_c_transform(cost, f + 3, 0.5)
    torch.testing.assert_close(shifted.value, soft_c_transform(cost, f, 0.5).value - 3)


@pytest.mark.parametrize("curvature", [-0.5, 0.0, 1.0, 2.0])
def test_descent_reaches_the_closed_form(curvature):
    """f = −½a‖x‖²: the minimiser is x1/(1 + a), the value ½ a/(1 + a) ‖x1‖²."""
    x1 = torch.randn(6, 3, generator=generator(8, "descent"), dtype=torch.float64)
    found = c_transform_descent(lambda x: -curvature * x.square().sum(1) / 2, x1, x1, steps=200, rate=0.3)
    torch.testing.assert_close(found.x0, x1 / (1 + curvature))
    torch.testing.assert_close(found.value, curvature / (1 + curvature) * x1.square().sum(1) / 2)


def test_descent_is_the_printed_iteration():
    """With a = ½ and rate ½ the error shrinks by 1 − ½ · 1.5 = ¼ a step; the value is the last iterate's."""
    x1 = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    start = torch.tensor([[10.0, 1.0]], dtype=torch.float64)
    found = c_transform_descent(lambda x: -x.square().sum(1) / 4, x1, start)
    expected = x1 / 1.5 + (start - x1 / 1.5) * 0.25**5
    torch.testing.assert_close(found.x0, expected)
    torch.testing.assert_close(found.value, ((expected - x1).square() / 2 + expected.square() / 4).sum(1))
    assert torch.equal(c_transform_descent(lambda x: x.sum(1), x1, start, steps=0).x0, start)


def test_descent_holds_the_argmin_fixed():
    """The gradient in f's parameter a is ∂(−f)/∂a = ½‖x0‖² at the x0 returned, and nothing through x0."""
    curvature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x1 = torch.tensor([[2.0, -1.0]], dtype=torch.float64, requires_grad=True)
    found = c_transform_descent(lambda x: -curvature * x.square().sum(1) / 2, x1, x1, steps=3)
    assert not found.x0.requires_grad and curvature.grad is None
    found.value.sum().backward()
    torch.testing.assert_close(curvature.grad, found.x0.square().sum() / 2)
    torch.testing.assert_close(x1.grad, x1.detach() - found.x0)


def test_descent_serves_networks_images_and_constants():
    x1 = torch.randn(4, 1, 3, 3, generator=generator(9, "descent"))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 1))
    with torch.no_grad():
        found = c_transform_descent(network, x1, torch.zeros_like(x1), steps=50)
    torch.testing.assert_close(found.x0, x1 + network[1].weight.detach().reshape(1, 1, 3, 3))
    assert found.value.shape == (4,) and all(part.grad is None for part in network.parameters())
    constant = c_transform_descent(lambda x: torch.full((len(x),), 2.0), x1, x1)
    assert torch.equal(constant.value, torch.full((4,), -2.0))


def test_refusals_are_sentences():
    with pytest.raises(UsageError, match="shape"):
        c_transform(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(UsageError, match="epsilon"):
        soft_c_transform(torch.zeros(3, 2), torch.zeros(3), 0.0)
    x1 = torch.zeros(2, 2)
    with pytest.raises(UsageError, match="one start"):
        c_transform_descent(lambda x: x.sum(1), x1, torch.zeros(3, 2))
    with pytest.raises(UsageError, match="rate"):
        c_transform_descent(lambda x: x.sum(1), x1, x1, rate=0.0)
    with pytest.raises(UsageError, match="steps"):
        c_transform_descent(lambda x: x.sum(1), x1, x1, steps=-1)
    with pytest.raises(UsageError, match="one number each"):
        c_transform_descent(lambda x: x, x1, x1)
