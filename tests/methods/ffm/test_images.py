"""Flows on bytes: every coupling draws the same images as on their numbers, and trains through one pass or many."""

from dataclasses import replace

import pytest
import torch

from anabranch.data import Pixels
from anabranch.errors import DataError
from anabranch.federation import Federation, Silo
from anabranch.methods.ffm import FlowServer, preset
from anabranch.seeds import generator

SHAPE = (1, 3, 3)
METHODS = ["vanilla", "lot", "got", "got-balanced", "got-entropic", "sd"]
SHORT = {
    "flow": {"rounds": 3, "batch": 16, "hidden": 8, "layers": 2},
    "potential": {"before": 2, "batch": 16, "hidden": 8, "layers": 2},
    "semidiscrete": {"rounds": 3, "count": 64, "noises": 256, "block": 128},
}


def short(method, precision):
    settings = preset(method)
    parts = {name: replace(getattr(settings, name), **values) for name, values in SHORT.items()}
    return replace(settings, **parts | {"flow": replace(parts["flow"], precision=precision)})


def silos(as_bytes, flip="none"):
    found = []
    for number in range(2):
        x = torch.randint(256, (30, 9), generator=generator(number), dtype=torch.uint8)
        held = Pixels(x, torch.zeros(30, dtype=torch.long), SHAPE, flip)
        found.append(Silo(f"s{number}", held if as_bytes else held.x, secret=number))
    return found


def trained(method, members, fused=True, precision="float64"):
    federation = Federation(members, fused=fused)
    federation.open("images", 0)
    server = FlowServer(short(method, precision), federation)
    for _ in server.run():
        pass
    return torch.cat([tensor.flatten() for tensor in server.parameters.values()])


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_the_numbers_that_they_stand_for(method):
    one, other = (trained(method, silos(as_bytes), precision="float32") for as_bytes in (True, False))
    assert torch.equal(one, other)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("flip", ["random", "points"])
def test_one_pass_for_all_silos_is_a_pass_for_each(method, flip):
    together, apart = (trained(method, silos(True, flip), fused) for fused in (True, False))
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(together, trained(method, silos(True)), atol=1e-6)  # flips make a difference


def test_a_part_of_the_images_can_be_held_out():
    silo = Silo("a", None)
    silo.hold_out(0.2, seed=0)
    silo.hold(Pixels(torch.zeros(10, 9, dtype=torch.uint8), torch.arange(10), SHAPE, "random"))
    assert len(silo) == 8 and silo.held_out.shape == (2, 9) and float(silo.held_out.min()) == -1


def test_one_image_is_not_enough():
    with pytest.raises(DataError, match="holds 1 images; at least 2 are needed"):
        Silo("a", Pixels(torch.zeros(1, 9, dtype=torch.uint8), torch.zeros(1), SHAPE))
