import pytest
import torch
from torch import nn

from anabranch.errors import UsageError
from anabranch.flow import PotentialMLP, VelocityMLP, network, register_network
from anabranch.flow._networks import _BUILDERS
from anabranch.seeds import generator


def test_the_velocity_network_is_the_stack_it_says():
    field = VelocityMLP(2)
    widths = [(layer.in_features, layer.out_features) for layer in field.stack if isinstance(layer, nn.Linear)]
    assert widths == [(3, 64), (64, 64), (64, 64), (64, 2)]
    assert sum(isinstance(layer, nn.SELU) for layer in field.stack) == 3
    x, t = torch.randn(5, 2, generator=generator(0)), torch.rand(5, generator=generator(1))
    torch.testing.assert_close(field(x, t), field.stack(torch.cat([x, t[:, None]], dim=1)))


def test_one_time_serves_all_points():
    field = network("mlp", 3, seed=0)
    x = torch.randn(5, 3, generator=generator(0))
    torch.testing.assert_close(field(x, torch.tensor(0.25)), field(x, torch.full((5,), 0.25)))
    assert not torch.allclose(field(x, torch.tensor(0.25)), field(x, torch.tensor(0.75)))


def test_the_potential_is_one_number_a_point():
    potential = PotentialMLP(2, hidden=16, layers=2)
    assert potential(torch.zeros(7, 2)).shape == (7,)
    assert sum(isinstance(layer, nn.ReLU) for layer in potential.stack) == 2
    assert [layer.out_features for layer in potential.stack if isinstance(layer, nn.Linear)] == [16, 16, 1]


@pytest.mark.parametrize("name", ["mlp", "potential-mlp"])
def test_the_seed_decides_the_weights_and_leaves_no_trace(name):
    before = torch.get_rng_state()
    one, same, other = (network(name, 2, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_users_can_add_their_own():
    @register_network("test-linear")
    def linear(dimension: int, bias: bool = True) -> nn.Module:
        return nn.Linear(dimension, dimension, bias=bias)

    @register_network("test-identity")
    def identity(dimension: int) -> nn.Module:
        return nn.Identity()

    try:
        assert network("test-linear", 4, seed=0, bias=False).bias is None
        with pytest.raises(UsageError, match="did you mean 'bias'"):
            network("test-linear", 4, seed=0, bais=False)
        with pytest.raises(UsageError, match="has no options"):
            network("test-identity", 4, seed=0, hidden=2)
        with pytest.raises(UsageError, match="already"):
            register_network("test-linear")(linear)
    finally:
        del _BUILDERS["test-linear"], _BUILDERS["test-identity"]


def test_misspelt_names_and_sizes_get_a_sentence():
    with pytest.raises(UsageError, match="did you mean 'mlp'"):
        network("mpl", 2, seed=0)
    with pytest.raises(UsageError, match=r"no mlp option 'hiden'; did you mean 'hidden'\?"):
        network("mlp", 2, seed=0, hiden=3)
    for options in ({"hidden": 0}, {"layers": 0}, {"layers": 1.5}):
        with pytest.raises(UsageError, match="whole number"):
            network("mlp", 2, seed=0, **options)
    with pytest.raises(UsageError, match="dimension = 0"):
        network("potential-mlp", 0, seed=0)
