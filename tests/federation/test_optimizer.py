"""Server optimisers against torch's own, schedules against their formulas."""

import math

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.federation import ServerOptimizer
from anabranch.seeds import generator


def start():
    draws = generator(0, "parameters")
    return {"w": torch.randn(4, 3, generator=draws), "b": torch.randn(3, generator=draws)}


def gradients(step):
    draws = generator(step, "gradients")
    return {"w": torch.randn(4, 3, generator=draws), "b": torch.randn(3, generator=draws)}


def follow(rule, steps, optimizer=None):
    optimizer = optimizer or rule.begin(start())
    for step in range(optimizer.steps, steps):
        optimizer.step(gradients(step))
    return optimizer


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("name", "torchs"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_follows_torch(name, torchs):
    mine = follow(ServerOptimizer(name, 0.05), 10).parameters
    theirs = {key: torch.nn.Parameter(value) for key, value in start().items()}
    optimizer = torchs(theirs.values(), lr=0.05)
    for step in range(10):
        for key, gradient in gradients(step).items():
            theirs[key].grad = gradient
        optimizer.step()
    assert all(torch.allclose(mine[key], theirs[key], atol=1e-6) for key in mine)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_gradient_may_lie_transposed_in_memory(name):
    plain, transposed = (ServerOptimizer(name, 0.05).begin(start()) for _ in range(2))
    for step in range(3):
        plain.step(gradients(step))
        transposed.step(
            {key: slope.mT.contiguous().mT if slope.ndim > 1 else slope for key, slope in gradients(step).items()}
        )
    assert equal(plain.parameters, transposed.parameters)


def test_sgd_of_rate_one_subtracts_the_gradient():
    optimizer = follow(ServerOptimizer("sgd", 1.0), 1)
    for name, value in start().items():
        assert torch.allclose(optimizer.parameters[name], value - gradients(0)[name])


class TestRate:
    def test_is_constant_by_default(self):
        assert {ServerOptimizer(rate=0.3).rate_at(step) for step in (0, 5, 10**6)} == {0.3}

    def test_falls_along_half_a_cosine(self):
        rule = ServerOptimizer(rate=2.0, schedule="cosine", rounds=100)
        assert rule.rate_at(0) == 2.0 and rule.rate_at(50) == pytest.approx(1.0)
        assert rule.rate_at(25) == pytest.approx(1 + math.sqrt(0.5))
        assert rule.rate_at(100) == rule.rate_at(500) == 0.0

    def test_warms_up_linearly(self):
        rule = ServerOptimizer(rate=1.0, warm_up=4)
        assert [rule.rate_at(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]

    def test_is_what_a_step_uses(self):
        rule = ServerOptimizer("sgd", 1.0, "cosine", rounds=4, warm_up=2)
        optimizer = rule.begin({"w": torch.zeros(1)})
        for step in range(4):
            before = float(optimizer.parameters["w"])
            optimizer.step({"w": torch.ones(1)})
            assert before - float(optimizer.parameters["w"]) == pytest.approx(rule.rate_at(step), abs=1e-6)


class TestClip:
    def test_bounds_the_norm_of_all_gradients_together(self):
        optimizer = ServerOptimizer("sgd", 1.0, clip=0.5).begin({"w": torch.zeros(1), "b": torch.zeros(1)})
        optimizer.step({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        moved = torch.cat([optimizer.parameters["w"], optimizer.parameters["b"]])
        assert torch.allclose(moved, torch.tensor([-0.3, -0.4]), atol=1e-5)

    def test_leaves_small_ones_alone(self):
        optimizer = ServerOptimizer("sgd", 1.0, clip=10.0).begin({"w": torch.zeros(1)})
        optimizer.step({"w": torch.tensor([3.0])})
        assert float(optimizer.parameters["w"]) == -3.0


@pytest.mark.parametrize("rule", [ServerOptimizer("adam", 0.1, "cosine", 20, 3, 1.0), ServerOptimizer("sgd", 0.1)])
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_going_on_from_a_state_is_the_same_to_the_bit(rule, stop):
    whole = follow(rule, 15)
    state = follow(rule, stop).state("flow")
    again = rule.begin({name: torch.zeros_like(value) for name, value in start().items()})
    again.load("flow", state)
    assert again.steps == stop and equal(follow(rule, 15, again).parameters, whole.parameters)


def test_a_state_is_a_copy():
    optimizer = follow(ServerOptimizer(), 1)
    kept = optimizer.state("x")
    state = {name: tensor.clone() for name, tensor in kept.items()}
    follow(ServerOptimizer(), 5, optimizer)
    assert equal(state, kept)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="did you mean 'adam'"):
        ServerOptimizer("adm")
    with pytest.raises(UsageError, match="did you mean 'cosine'"):
        ServerOptimizer(schedule="cosin")
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="positive number"):
            ServerOptimizer(rate=rate)


@pytest.mark.parametrize("option", [{"clip": -1.0}, {"warm_up": -5}])
def test_negative_options_are_refused(option):
    with pytest.raises(UsageError):
        ServerOptimizer(**option)
