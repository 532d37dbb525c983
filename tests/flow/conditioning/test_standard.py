import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import LinearPath, network
from anabranch.flow.conditioning import Standard, composed
from anabranch.seeds import generator

IMAGES = {"sizes": (3, 2), "shape": (2, 4, 4), "channels": 8, "multipliers": (1, 2)}


@pytest.mark.parametrize("time", [0.0, 0.3, 0.9, 1.0])
def test_drift_and_scale_are_the_regression_of_gaussian_data(time):
    random = generator(0)
    x0, x1 = (torch.randn(200_000, 1, generator=random, dtype=torch.float64) for _ in range(2))
    t = torch.full((200_000,), time, dtype=torch.float64)
    path = LinearPath().sample(x0, 0.4 * x1 - 0.8, t)
    standard = Standard(-0.8, 0.4)
    left = path.u_t - standard.drift(path.x_t, t)
    inputs = standard.inputs(path.x_t, t)
    for value in (left.mean(), (left * inputs).mean(), inputs.mean()):  # nothing linear is left to learn
        assert abs(value) < 0.01
    assert inputs.std() == pytest.approx(1, abs=0.01)
    assert left.std() == pytest.approx(float(standard.scale(t)[0]), rel=0.01)


@pytest.mark.parametrize("name", ["conditional-unet", "additive-unet"])
def test_an_untrained_network_moves_as_gaussian_data_would(name):
    net = network(name, 32, seed=0, center=-0.8, spread=0.4, **IMAGES).double()
    x, t = torch.randn(6, 32, generator=generator(1)).double(), torch.linspace(0, 1, 6).double()
    y = torch.tensor([[0, 1], [2, 0], [1, -1], [-1, 1], [-1, -1], [2, 1]])
    drift = Standard(-0.8, 0.4).drift(x, t)
    torch.testing.assert_close(net(x, t, y), drift)
    torch.testing.assert_close(net(x[:1], t[3], y[:1]), Standard(-0.8, 0.4).drift(x[:1], t[3:4]))
    torch.testing.assert_close(composed(net, [4.0, 2.0])(x, t, y), drift)  # weights do not multiply what all share


def test_what_it_learns_is_added_in_the_right_size():
    net = network("conditional-unet", 32, seed=0, center=-0.8, spread=0.4, **IMAGES).double()
    plain = network("conditional-unet", 32, seed=0, **IMAGES).double()
    random = generator(2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random).double())
    plain.load_state_dict(net.state_dict())
    x, t, y = torch.randn(5, 32, generator=random).double(), torch.linspace(0, 1, 5).double(), torch.ones(5, 2).long()
    standard = Standard(-0.8, 0.4)
    expected = standard.drift(x, t) + standard.scale(t)[:, None] * plain(standard.inputs(x, t), t, y)
    torch.testing.assert_close(net(x, t, y), expected)


def test_half_precision_inside_leaves_the_drift_exact():
    net = network("conditional-unet", 32, seed=0, center=-0.8, spread=0.4, **IMAGES).bfloat16()
    x, t = torch.randn(4, 32, generator=generator(3)), torch.tensor([0.1, 0.5, 0.9, 0.999])
    found = net(x, t, torch.zeros(4, 2).long())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, Standard(-0.8, 0.4).drift(x, t))


@pytest.mark.parametrize(("center", "spread"), [(0.0, -1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_what_no_data_can_have_is_refused(center, spread):
    with pytest.raises(UsageError, match="Data cannot have center"):
        network("conditional-unet", 32, seed=0, center=center, spread=spread, **IMAGES)
