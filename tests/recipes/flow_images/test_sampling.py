"""Samples from one noise, by fixed steps and by dopri5."""

from types import SimpleNamespace

import pytest
import torch

from anabranch.errors import ExhaustedError
from anabranch.methods.ffm import FlowServer
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _memory as memory
from anabranch.recipes.studies.flow_images import _sampling as sampling
from anabranch.runs import device_of
from tests.recipes.flow_images.cells import cell


def test_samples_do_not_depend_on_how_many_are_drawn_at_once(everything):
    out, _ = everything
    one = cell(out, "lot")
    config = study.config_of(one)
    velocity, device = study.velocity_of(one.folder / study.RUN, config)
    images = study.sampled(velocity, config, 0, one.options["sampling"], 2, device).images
    assert images.shape == (12, 1, 8, 8) and images.dtype == torch.uint8
    for other in ({"count": 5}, {"batch": 7}, {"batch": 12}):
        found = study.sampled(velocity, config, 0, {**one.options["sampling"], **other}, 2, device).images
        assert torch.equal(images[: len(found)], found)


def test_noise_is_the_same_in_all_parts_and_new_in_every_row():
    whole = sampling.noise(3, 0, 250, 4, torch.device("cpu"))
    parts = [sampling.noise(3, start, 30, 4, torch.device("cpu")) for start in range(0, 250, 30)]
    assert torch.equal(torch.cat(parts)[:250], whole) and len(torch.unique(whole, dim=0)) == 250
    assert abs(float(whole.mean())) < 0.1 and float(whole.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(whole, sampling.noise(4, 0, 250, 4, torch.device("cpu")))


def test_dopri5_counts_its_evaluations_and_agrees_with_many_steps(everything):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))
    velocity, device = study.velocity_of(one.folder / study.RUN, config, precise=True)
    calls = []

    def counted(x, t):
        calls.append(len(x))
        return velocity(x, t)

    adaptive = study.sampled(counted, config, 0, one.options["sampling"], None, device)
    assert adaptive.evaluations == pytest.approx(sum(calls) / 12)
    many = study.sampled(velocity, config, 0, {**one.options["sampling"], "solver": "rk4"}, 80, device)
    assert (adaptive.images.int() - many.images.int()).abs().max() <= 1


def test_dopri5_is_computed_in_32_bits_whatever_the_flow_was_trained_in(everything, monkeypatch):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot", flow={"precision": "bfloat16"}))
    asked = []
    real = FlowServer.velocity_of
    monkeypatch.setattr(
        FlowServer,
        "velocity_of",
        staticmethod(
            lambda settings, *rest, exact: asked.append((settings.flow.precision, exact)) or real(settings, *rest)
        ),
    )
    for precise in (False, True):
        study.velocity_of(one.folder / study.RUN, config, precise)
    assert asked == [("bfloat16", False), ("float32", True)]


def test_what_is_ready_compiles_before_the_clock_runs(everything, monkeypatch):
    """Compiling pays for all numbers of steps together, and its pass is one of a whole batch."""
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))
    velocity, _ = study.velocity_of(one.folder / study.RUN, config)
    asked, seen = [], []
    monkeypatch.setattr(velocity, "_compile", lambda at_once: asked.append(at_once))
    monkeypatch.setattr(velocity, "_pass", lambda x, t: seen.append(len(x)) or x)
    monkeypatch.setattr("anabranch.methods.ffm._velocity.AUTO_ROWS", 12 * 5)
    for steps, expected in (([1, 3], False), ([1, 4], True), ([None], True)):
        asked.clear()
        sampling.make_ready(velocity, config, one.options["sampling"], steps)
        assert asked[0] is expected
    assert velocity.rows == 5 and seen == [5] * 3


def test_where_memory_runs_out_the_recipes_option_is_named(everything, monkeypatch):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))

    def exhausted(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ExhaustedError, match=r"images were sampled, 5 at a time. .* --set sampling.batch=2,"):
        study.sampled(exhausted, config, 0, one.options["sampling"], 2, device_of(config))
    eyes = study.Eyes(one.options, config, device_of(config))
    eyes.inception, eyes.batch = SimpleNamespace(features=exhausted), 250
    with pytest.raises(ExhaustedError, match=r"looked at images, 250 at a time. .* --set inception.batch=125,"):
        eyes.features(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="other"), memory.spared_option("a.batch", 1, "it was"):
        raise ValueError("other")
