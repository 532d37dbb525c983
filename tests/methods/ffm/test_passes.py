"""Recorded passes of a flow's network: the same losses and gradients, whatever lies where."""

import weakref
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch.func import functional_call

from anabranch.data import Pixels
from anabranch.federation import Federation, Participation, Silo
from anabranch.flow import PathSample, network
from anabranch.flow import _compiled as compiled
from anabranch.methods.ffm import FlowServer, ImageSettings, preset
from anabranch.methods.ffm import _half as halves
from anabranch.methods.ffm._passes import _SHARED, RecordedPass, forget_pass, weighted_error
from anabranch.methods.ffm._rounding import rounded
from anabranch.seeds import generator

IMAGES = ImageSettings(shape=(1, 4, 4), channels=4, multipliers=(1, 2), blocks=1, attention=())
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def server_of(dropout=0.2, device="cpu", chosen=None, federated=MappingProxyType({}), **flow):
    base = preset("vanilla")
    options = {"network": "unet", "precision": "float64", "rounds": 8, "batch": 8, **flow}
    silos = []
    for number in range(3):
        x = torch.randint(256, (20, 16), generator=generator(number), dtype=torch.uint8)
        silos.append(Silo(f"s{number}", Pixels(x, torch.zeros(20).long(), (1, 4, 4)).to(device), secret=number))
    federation = Federation(silos, participation=chosen, **federated)
    federation.open("passes", 0)
    return FlowServer(
        replace(base, flow=replace(base.flow, **options), images=replace(IMAGES, dropout=dropout)), federation
    )


def trained(**options):
    """What a run ends with, and its losses."""
    server = server_of(**options)
    losses = [float(progress.metrics["loss"]) for progress in server.run()]
    return server.state(), losses


def same(found, expected, **tolerance):
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].cpu(), tensor.cpu(), **tolerance)


def field_of(**options):
    found = network("unet", 16, 0, shape=(1, 4, 4), channels=4, multipliers=(1, 2), blocks=1, attention=(), **options)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(1, tuple(parameter.shape))))
    return found.eval()


def sample_of(count, seed=0):
    x, u = torch.randn(2, count, 16, generator=generator(seed))
    return PathSample(x, u, torch.rand(count, generator=generator(seed, "t")))


@pytest.fixture
def made(monkeypatch):
    """Passes go the way of recorded ones here, too, where nothing is recorded; those that were made."""
    found, plain = [], RecordedPass.__init__
    monkeypatch.setattr(RecordedPass, "__init__", lambda self, *rest: found.append(self) or plain(self, *rest))
    monkeypatch.setattr(halves, "records", lambda *_: True)
    forget_pass()
    return found


def test_a_run_is_the_same_with_recorded_passes(made, monkeypatch):
    found, losses = trained()
    assert len(made) == 1
    monkeypatch.setattr(halves, "records", lambda *_: False)
    plain, others = trained()
    assert len(made) == 1 and others == losses
    same(found, plain, rtol=0, atol=0)


def test_a_pass_of_another_size_is_computed_as_it_comes(made, monkeypatch):
    sizes, inner = [], RecordedPass.__call__
    monkeypatch.setattr(RecordedPass, "__call__", lambda self, p, s, w: sizes.append(len(s.t)) or inner(self, p, s, w))
    found, _ = trained(passes=5, rounds=2)
    assert sizes == [5, 5, 5, 5] * 2 and len(made) == 1  # three silos' batches of eight are four times 5, and 4
    monkeypatch.setattr(halves, "records", lambda *_: False)
    same(found, trained(passes=5, rounds=2)[0], rtol=0, atol=0)


def test_whoever_takes_part_one_pass_serves_all(made):
    trained(chosen=Participation("random", 2))
    assert len(made) == 1  # the first of two is not always the same silo


def test_silos_that_answer_alone_have_no_recorded_pass(made):
    trained(federated={"fused": False}, passes=2)
    assert not made


def test_a_process_has_one_recording_at_a_time_and_none_while_it_samples(made):
    first, second = server_of(), server_of(batch=4)
    rounds = [server.run() for server in (first, second)]
    for run in rounds:
        next(run)
    kept = [weakref.ref(one) for one in made]
    made.clear()
    assert [ref() is None for ref in kept] == [True, False]
    second.velocity()
    assert kept[1]() is None
    next(rounds[1])
    assert len(made) == 1


@pytest.mark.parametrize("channels_last", [False, True])
def test_parameters_are_rounded_on_the_way_in_and_gradients_come_back_in_full(channels_last):
    field, sample = field_of(channels_last=channels_last), sample_of(5)
    weights = torch.rand(5, generator=generator(3))
    named = dict(field.named_parameters())
    own = RecordedPass(field, {name: p.detach() for name, p in named.items()}, torch.bfloat16, sample)
    for factor in (1.0, 1.5):  # other parameters, elsewhere in memory
        moved = {name: (factor * p).detach().requires_grad_() for name, p in named.items()}
        value, slopes = own(list(moved.values()), sample, weights)
        half = dict(zip(moved, rounded(list(moved.values())), strict=True))
        loss = weighted_error(functional_call(field, half, (sample.x_t, sample.t)), sample.u_t, weights)
        assert torch.equal(value, loss.detach())
        for slope, expected in zip(slopes, torch.autograd.grad(loss, list(moved.values())), strict=True):
            assert slope.dtype == torch.float32 and torch.equal(slope, expected)


def test_what_was_given_before_stays_what_it_was():
    field, weights = field_of(), torch.ones(4)
    parameters = {name: p.detach() for name, p in field.named_parameters()}
    own = RecordedPass(field, parameters, torch.float32, sample_of(4))
    first = own(list(parameters.values()), sample_of(4), weights)
    kept = first[0].clone(), [slope.clone() for slope in first[1]]
    second = own(list(parameters.values()), sample_of(4, seed=1), weights)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], kept[0]) and all(map(torch.equal, first[1], kept[1]))


def test_a_run_whose_weights_lie_by_places_is_the_same_and_can_be_taken_up(monkeypatch):
    plain, losses = trained(dropout=0.0)  # which numbers drop out follows their order in memory
    monkeypatch.setattr(halves, "layout", lambda *_: {"channels_last": True})
    found, others = trained(dropout=0.0)
    assert others == pytest.approx(losses, rel=1e-9)
    same(found, plain, rtol=1e-7, atol=1e-9)
    server = server_of()
    weight = server.optimizer.parameters["stem.weight"]
    server.load({name: tensor.contiguous() for name, tensor in found.items()})  # as a file gives it
    assert weight.is_contiguous(memory_format=torch.channels_last)
    same(server.state(), found, rtol=0, atol=0)


def test_a_potentials_weights_lie_as_those_of_the_network(monkeypatch):
    base = preset("got")
    settings = replace(
        base,
        flow=replace(base.flow, network="unet"),
        potential=replace(base.potential, network="cnn-potential"),
        images=ImageSettings(shape=(3, 8, 8), channels=32),
    )
    asked = []
    monkeypatch.setattr(halves, "layout", lambda _, place: asked.append(place) or {"channels_last": True})
    potential = halves.potential_network(settings, 192, device="cpu")
    assert asked == [torch.device("cpu")]
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in potential.layers)


@ON_GPU
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_replays_what_it_would_compute(monkeypatch, precision):
    """Dropout included: its numbers follow from the round, recorded or not."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    monkeypatch.setattr("torch.backends.cudnn.deterministic", True)
    options = {"precision": precision, "compile": True, "device": "cuda"}
    found, losses = trained(**options)
    (recorded,) = _SHARED.values()
    assert recorded.work.recorded
    monkeypatch.setattr(halves, "records", lambda *_: False)
    plain, others = trained(**options)
    assert losses == pytest.approx(others, rel=1e-4)
    same(found, plain, rtol=1e-3, atol=1e-4)
