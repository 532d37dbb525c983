import pytest
import torch

from anabranch.errors import CheckpointError, UsageError
from anabranch.flow import MovingAverage
from anabranch.seeds import generator


def parameters(step, dtype=torch.float64):
    random = generator(0, "parameters", step)
    return {
        "weight": torch.randn(3, 2, generator=random, dtype=dtype),
        "bias": torch.randn(2, generator=random, dtype=dtype),
    }


def test_without_warm_up_it_is_the_geometric_sum():
    decay, steps = 0.9, 20
    average = MovingAverage(parameters(0), decay, warm_up=False)
    for step in range(1, steps + 1):
        average.update(parameters(step))
    for name in ("weight", "bias"):
        expected = decay**steps * parameters(0)[name] + sum(
            (1 - decay) * decay ** (steps - step) * parameters(step)[name] for step in range(1, steps + 1)
        )
        torch.testing.assert_close(average.parameters[name], expected)
    assert average.count == steps


def test_warm_up_forgets_the_beginning_by_the_product_of_its_decays():
    average = MovingAverage({"w": torch.ones(1, dtype=torch.float64)}, decay=0.5)
    remaining = 1.0
    for k in range(30):
        average.update({"w": torch.zeros(1, dtype=torch.float64)})
        remaining *= min(0.5, (1 + k) / (10 + k))
        assert float(average.parameters["w"]) == pytest.approx(remaining)
    assert remaining == pytest.approx(0.5**22 * torch.tensor([(1 + k) / (10 + k) for k in range(8)]).prod())


def test_it_keeps_a_copy_and_takes_no_gradients():
    weight = torch.ones(2, requires_grad=True)
    average = MovingAverage({"w": weight})
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(average.parameters["w"], torch.ones(2))
    average.update({"w": weight})
    assert not average.parameters["w"].requires_grad


def test_counters_are_copied():
    average = MovingAverage({"w": torch.zeros(1), "seen": torch.tensor(0)})
    average.update({"w": torch.ones(1), "seen": torch.tensor(5)})
    assert int(average.parameters["seen"]) == 5


def test_a_resumed_average_goes_on_to_the_same_bits():
    through = MovingAverage(parameters(0, torch.float32))
    for step in range(1, 6):
        through.update(parameters(step, torch.float32))
    saved = through.state()
    resumed = MovingAverage(parameters(99, torch.float32))
    resumed.load(saved)
    for step in range(6, 12):
        for average in (through, resumed):
            average.update(parameters(step, torch.float32))
    assert resumed.count == through.count == 11
    assert all(torch.equal(resumed.parameters[name], through.parameters[name]) for name in ("weight", "bias"))
    assert int(saved["count"]) == 5 and not torch.equal(saved["average.bias"], through.parameters["bias"])


def test_strangers_are_refused():
    average = MovingAverage(parameters(0))
    with pytest.raises(UsageError, match="'bias' is missing"):
        average.update({"weight": torch.zeros(3, 2)})
    with pytest.raises(UsageError, match="shape"):
        average.update({"weight": torch.zeros(1, 2), "bias": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"'average\.other' is not known"):
        average.load({**average.state(), "average.other": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="float32"):
        average.load({**average.state(), "average.bias": torch.zeros(2)})
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="decay"):
            MovingAverage(parameters(0), decay)
