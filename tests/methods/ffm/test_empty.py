"""Silos' networks before the first question: built once, without numbers of their own, and strangers to each other."""

from dataclasses import replace

import pytest
import torch

from anabranch.data import Pixels
from anabranch.federation import Federation, Silo
from anabranch.methods.ffm import FlowServer, ImageSettings, half_of, preset
from anabranch.methods.ffm import _half as half
from anabranch.seeds import generator

IMAGES = ImageSettings(shape=(1, 4, 4), channels=4, multipliers=(1, 2), blocks=1, attention=(2,), dropout=0.0)
CPU = torch.device("cpu")


def settings_of(network="unet"):
    base = preset("vanilla")
    return replace(base, flow=replace(base.flow, network=network, batch=8, rounds=2), images=IMAGES)


@pytest.mark.parametrize("network", ["unet", "mlp"])
def test_once_loaded_it_is_the_network(network):
    settings = settings_of(network)
    whole, empty = half.flow_network(settings, 16, seed=3), half.empty_network(settings, 16, CPU)
    half.load_parameters(empty, {name: p.detach() for name, p in whole.named_parameters()})
    x, t = torch.randn(3, 16, generator=generator(0)), torch.rand(3, generator=generator(1))
    assert torch.equal(whole(x, t), empty(x, t))
    found, wanted = (half.gradients(one(x, t).square().sum(), one) for one in (empty, whole))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("network", ["unet", "mlp"])
def test_it_holds_no_numbers(network):
    places = {p.untyped_storage().data_ptr() for p in half.empty_network(settings_of(network), 16, CPU).parameters()}
    assert len(places) == 1


def test_what_one_is_given_the_others_do_not_see():
    one, other = (half.empty_network(settings_of(), 16, CPU) for _ in range(2))
    assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    assert not {id(m) for m in one.modules()} & {id(m) for m in other.modules()}
    half.load_parameters(one, {name: torch.ones(p.shape) for name, p in one.named_parameters()})
    for module in (other, half.empty_network(settings_of(), 16, CPU)):
        assert not any(p.any() for p in module.parameters())


def test_many_silos_build_one_network(monkeypatch):
    built = []
    network = half.network
    monkeypatch.setattr(
        half, "network", lambda name, *rest, **options: (built.append(name), network(name, *rest, **options))[1]
    )
    half._empty_model.cache_clear()
    half.cost_of_images.cache_clear()
    images = torch.randint(256, (6, 20, 16), generator=generator(0), dtype=torch.uint8)
    silos = [Silo(f"s{i}", Pixels(x, torch.zeros(20).long(), (1, 4, 4)), secret=i) for i, x in enumerate(images)]
    federation = Federation(silos)
    federation.open("empty", 0)
    list(FlowServer(settings_of(), federation).run())
    assert built == ["unet"] * 2  # the server's own, and the silos'
    assert len({id(half_of(silo).field) for silo in silos}) == 6
