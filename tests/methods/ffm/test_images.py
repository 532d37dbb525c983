"""Flows on bytes: every coupling draws the same images as on their numbers, and trains through one pass or many."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch

from anabranch.data import Pixels
from anabranch.errors import DataError, RefusedError, UsageError
from anabranch.federation import Federation, Silo
from anabranch.methods.ffm import FlowMatching, FlowServer, FlowSettings, ImageSettings, Prepare, preset
from anabranch.methods.ffm._silo import prepare
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


@pytest.mark.parametrize(
    ("method", "flip"), [*product(METHODS[:-1], ["random", "points"]), ("sd", "points")]
)  # sd does not know images that differ at every draw
def test_one_pass_for_all_silos_is_a_pass_for_each(method, flip):
    together, apart = (trained(method, silos(True, flip), fused) for fused in (True, False))
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(together, trained(method, silos(True)), atol=1e-6)  # flips make a difference


@pytest.mark.parametrize(("flip", "crop", "how"), [("random", 1.0, "mirrored"), ("points", 0.5, "cropped")])
def test_images_that_differ_at_every_draw_have_no_semi_discrete_pairs(flip, crop, how):
    held = Pixels(torch.zeros(30, 9, dtype=torch.uint8), torch.zeros(30), SHAPE, flip, crop=crop)
    silo = Silo("a", held)
    with pytest.raises(RefusedError, match=f"are {how} at random .* data.flip to 'points'"):
        prepare(silo, Prepare(short("sd", "float32").to_json(), weight=1.0))
    prepare(silo, Prepare(short("lot", "float32").to_json(), weight=1.0))


def test_a_part_of_the_images_can_be_held_out():
    silo = Silo("a", None)
    silo.hold_out(0.2, seed=0)
    silo.hold(Pixels(torch.zeros(10, 9, dtype=torch.uint8), torch.arange(10), SHAPE, "random"))
    assert len(silo) == 8 and silo.held_out.shape == (2, 9) and float(silo.held_out.min()) == -1


def test_one_image_is_not_enough():
    with pytest.raises(DataError, match="holds 1 image; at least 2 are needed"):
        Silo("a", Pixels(torch.zeros(1, 9, dtype=torch.uint8), torch.zeros(1), SHAPE))


# A network for images ------------------------------------------------------------------------------------------------


UNET = {"shape": (1, 4, 4), "channels": 4, "multipliers": (1, 2), "blocks": 1, "attention": (), "dropout": 0.0}


def pictured(method, fused=True, dropout=0.0, rounds=2, name="images"):
    settings = short(method, "float64")
    settings = replace(
        settings,
        flow=replace(settings.flow, network="unet", rounds=rounds),
        potential=replace(settings.potential, network="cnn-potential"),
        images=ImageSettings(**{**UNET, "dropout": dropout}),
    )
    members = []
    for number in range(2):
        x = torch.randint(256, (30, 16), generator=generator(number), dtype=torch.uint8)
        flip = "points" if method == "sd" else "random"
        members.append(Silo(f"s{number}", Pixels(x, torch.zeros(30).long(), (1, 4, 4), flip), secret=number))
    federation = Federation(members, fused=fused)
    federation.open(name, 0)
    server = FlowServer(settings, federation)
    for _ in server.run():
        pass
    return server


def flat(server):
    return torch.cat([tensor.flatten() for tensor in server.parameters.values()])


@pytest.mark.parametrize("method", METHODS)
def test_a_unet_learns_alike_in_one_pass_and_in_many(method):
    together, apart = (flat(pictured(method, fused)) for fused in (True, False))
    torch.testing.assert_close(together, apart, rtol=1e-8, atol=1e-8)


def test_dropout_follows_from_the_seed_alone_and_leaves_torchs_own_numbers():
    state = torch.get_rng_state()
    first = pictured("vanilla", dropout=0.3, rounds=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    again = pictured("vanilla", dropout=0.3, rounds=4)
    assert torch.equal(flat(first), flat(again))
    assert not torch.equal(flat(first), flat(pictured("vanilla", dropout=0.0, rounds=4)))
    x, t = torch.randn(3, 16, generator=generator(5)), torch.tensor(0.5)
    assert torch.equal(first.velocity()(x, t), first.velocity()(x, t))  # samples are drawn without it


def test_settings_of_images_travel_as_json():
    settings = FlowMatching(FlowSettings(network="unet"), images=ImageSettings(**UNET))
    assert FlowMatching.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FlowMatching(FlowSettings(network="unet")), "images.shape is not given"),
        (lambda: ImageSettings(shape=(3, 32)), "give colours, height and width"),
        (lambda: ImageSettings(dropout=1.0), "a probability below one"),
        (lambda: FlowMatching.from_json('{"images": {"shape": 3}}'), "a list of a few whole numbers"),
        (lambda: FlowMatching.from_json('{"images": {"shape": [3, 2.5, 1]}}'), "a value of type int"),
        (lambda: FlowMatching.from_json(json.dumps({"images": {"attention": [1] * 17}})), "a few whole numbers"),
        (lambda: ImageSettings(blocks=10**6), "at most 64"),
        (lambda: ImageSettings(multipliers=(1, 0)), "numbers from one"),
    ],
)
def test_settings_that_no_network_can_have_are_refused(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


def test_a_network_is_refused_before_it_is_built():
    silo = Silo("a", Pixels(torch.zeros(4, 3072, dtype=torch.uint8), torch.zeros(4).long(), (3, 32, 32)))
    settings = FlowMatching(FlowSettings(network="unet"), images=ImageSettings(shape=(3, 32, 32), channels=10**9))
    with pytest.raises(RefusedError, match="a network of this size"):
        prepare(silo, Prepare(settings.to_json(), 1.0, None))


def test_a_step_that_costs_too_much_is_refused():
    silo = Silo("a", Pixels(torch.zeros(4, 3072, dtype=torch.uint8), torch.zeros(4).long(), (3, 32, 32)))
    silo.most_work = 10**9
    settings = FlowMatching(FlowSettings(network="unet", batch=64), images=ImageSettings(shape=(3, 32, 32)))
    with pytest.raises(RefusedError, match="a training step with these settings"):
        prepare(silo, Prepare(settings.to_json(), 1.0, None))
