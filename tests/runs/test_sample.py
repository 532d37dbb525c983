"""Samples a batch at a time: noise that no batch changes, and how they are computed."""

import numpy as np
import pytest
import torch

from anabranch import seeds
from anabranch.data import Cloud, shape
from anabranch.errors import CheckpointError, UsageError
from anabranch.runs import (
    Computing,
    Notes,
    Sampling,
    draw_every,
    draw_samples,
    export,
    load_exported,
    open_chosen,
    open_file,
    open_flow,
    train,
    write_drawing,
)
from anabranch.runs._sample_noise import BLOCK, gaussian_noise, noise_of
from tests.runs.composing import NOVEL, composing
from tests.runs.test_images import config
from tests.runs.tiny import tiny


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "run"
    train(config(flow={"precision": "bfloat16"}), path)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"compile": "auto"', '"compile": true'))  # as trained on a GPU
    return path


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    path = tmp_path_factory.mktemp("points") / "run"
    train(tiny(flow={"precision": "float64"}), path)
    return path


# Noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 100, BLOCK - 1, BLOCK + 1, 3 * BLOCK])
def test_noise_is_the_same_whatever_the_batch(batch):
    count = 2 * BLOCK + 100
    source = shape("8gaussians")
    for noise in (
        noise_of(source, count, 5),
        gaussian_noise(2, count, 5),
        noise_of(Cloud(torch.randn(count, 2)), 9, 5),
    ):
        total = len(noise(0, count))
        parts = [noise(start, min(start + batch, total)) for start in range(0, total, batch)]
        assert torch.equal(torch.cat(parts), noise(0, total))
    whole = noise_of(source, count, 5)(0, count)
    assert torch.equal(whole[:BLOCK], source.points(BLOCK, seeds.generator(5, "sample")))
    assert len(whole.unique(dim=0)) == count  # no block repeats another
    assert torch.equal(noise_of(source, 7, 5)(0, 7), whole[:7])  # a longer row begins with the shorter one


@pytest.mark.parametrize("count", [1, 7, BLOCK - 1, BLOCK + 7])
def test_more_noise_begins_with_the_same(count):
    """A folder of pictures that a larger number is asked for keeps those that it has."""
    more = 2 * BLOCK + 100
    for noise in (lambda size: gaussian_noise(5, size, 3), lambda size: noise_of(shape("gaussian", 5), size, 3)):
        assert torch.equal(noise(count)(0, count), noise(more)(0, count))


def test_a_cloud_gives_no_point_twice_and_no_more_than_it_has():
    cloud = Cloud(torch.arange(30.0)[:, None])
    noise = noise_of(cloud, 30, 0)
    assert sorted(torch.cat([noise(0, 11), noise(11, 30)]).flatten().tolist()) == list(range(30))
    with pytest.raises(UsageError, match="the pool holds 30"):
        noise_of(cloud, 31, 0)


# What is computed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("composes", [False, True])
def test_a_checkpoint_that_is_passed_over_is_told(tmp_path, composes):
    """Samples of an older one would pass for those of the newest."""
    train(composing() if composes else tiny(), tmp_path)
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="The one before it is used"):
        draw_every(tmp_path, 1) if composes else draw_samples(tmp_path, 2, 1)


class Halt(Exception):
    """Stops a training where it is."""


def stopped(config, path, number):
    def halt(progress, federation):
        if progress.round == number:
            raise Halt

    with pytest.raises(Halt):
        train(config, path, Notes(halt))
    return path


def test_samples_of_a_run_that_has_not_finished_are_told_to_be(tmp_path):
    stopped(tiny(), tmp_path, 8)
    with pytest.warns(
        UserWarning, match=r"has not finished: these are samples as of round 5; 'anabranch resume .* goes on with it"
    ):
        draw_samples(tmp_path, 2, 1)


def test_a_flow_that_nobody_has_trained_yet_is_not_sampled_from(tmp_path):
    path = stopped(tiny(method="sd", coupling={"name": "semidiscrete"}), tmp_path, 8)  # of thirty that fit the duals
    with pytest.raises(CheckpointError, match=r"At round 5 the flow of .* is untrained"):
        draw_samples(path, 2, 1)


def test_batches_give_what_one_pass_gives_and_so_does_what_was_exported(points):
    count = BLOCK + 30
    whole = draw_samples(points, count, 4, "heun", seed=3)
    drawing = open_flow(points, count, Sampling(4, "heun", 3), Computing(300))
    parts = list(drawing.parts())
    assert [len(flow.x1) for flow in parts] == [300, 300, 300, count - 900] and whole.evaluations == 4
    torch.testing.assert_close(torch.cat([flow.x1 for flow in parts]), whole.x1)
    later = torch.cat([flow.x1 for flow in drawing.parts(600)])
    assert torch.equal(later, torch.cat([flow.x1 for flow in parts[2:]]))
    assert torch.equal(load_exported(export(points)).sample(count, 4, "heun", seed=3), whole.x1)


def test_a_run_trained_in_float64_can_be_sampled_in_float32(points):
    fine, coarse = (open_flow(points, 5, Sampling(4, "euler"), Computing(precision=p)) for p in ("", "float32"))
    assert fine.facts["precision"] == "float64" and coarse.facts["precision"] == "float32"
    torch.testing.assert_close(next(fine.parts()).x1, next(coarse.parts()).x1, rtol=1e-4, atol=1e-4)


def test_half_precision_falls_back_with_a_sentence_and_a_cpu_does_not_compile(images, points, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *words, **more: pytest.fail("compiled"))
    drawing = open_flow(images, 3, Sampling(1, "euler"), Computing(device="cpu"))
    assert drawing.facts["precision"] == "float32" and "this CPU does not" in drawing.notes[0]
    assert next(drawing.parts()).x1.shape == (3, 64)
    assert "networks of images" in open_flow(points, 3, Sampling(1, "euler"), Computing(precision="bfloat16")).notes[0]
    assert not open_flow(points, 3, Sampling(1, "euler")).notes
    adaptive = open_flow(images, 3, Sampling(None, "dopri5"), Computing(device="cpu"))
    assert not adaptive.notes  # it is computed in float32 everywhere


@pytest.mark.parametrize(
    ("sampling", "computing", "sentence"),
    [
        (Sampling(0, "euler"), {}, "nfe = 0"),
        (Sampling(3, "rk4"), {}, "Give nfe = 4"),
        (Sampling(3, "eular"), {}, "did you mean 'euler'"),
        (Sampling(None, "dopri5"), {"precision": "bfloat16"}, "needs numbers of 32 bits"),
        (Sampling(1, "euler"), {"precision": "float16"}, "did you mean"),
        (Sampling(1, "euler"), {"device": "gpu"}, "Known: auto, cpu, cuda"),
        (Sampling(1, "euler"), {"batch": -1}, "at least one"),
        (Sampling(1, "euler"), {"device": "cpu", "compile": True}, "pays on a GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(images, sampling, computing, sentence):
    with pytest.raises(UsageError, match=sentence):
        open_flow(images, 3, sampling, Computing(**computing))


def test_no_gpu_is_said(images, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no GPU here"):
        open_flow(images, 3, Sampling(1, "euler"), Computing(device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_samples_of_a_cpu_in_half_precision_and_compiled(images):
    words = Sampling(2, "euler")
    here = torch.cat([flow.x1 for flow in open_flow(images, 70, words, Computing(32, "cpu")).parts()])
    for computing in (Computing(32, "cuda", "float32", False), Computing(32, "cuda", "bfloat16", True)):
        drawing = open_flow(images, 70, words, computing)
        drawing.prepare()
        there = torch.cat([flow.x1 for flow in drawing.parts()])
        assert there.is_cuda and drawing.facts["precision"] == computing.precision and not drawing.notes
        assert float((there.cpu() - here).abs().mean()) < (0.02 if computing.compile else 1e-4)


# Compositions -------------------------------------------------------------------------------------------------------


def test_a_composition_is_drawn_in_batches_with_its_attributes(tmp_path):
    train(composing("ddm"), tmp_path / "run")
    sampling = Sampling(4)
    whole, parts = (open_chosen(tmp_path / "run", NOVEL, 20, sampling, Computing(batch)) for batch in (20, 7))
    x = torch.cat([flow.x1 for flow in parts.drawing.parts()])
    torch.testing.assert_close(x, next(whole.drawing.parts()).x1)
    with open_file(str(tmp_path / "x.npz"), parts.drawing) as file:
        write_drawing(parts.drawing, file)
    with np.load(tmp_path / "x.npz") as file:
        assert np.array_equal(file["x"], x.numpy()) and file["horizontal"].tolist() == ["right"] * 20
    every = [
        draw_every(tmp_path / "run", 5, sampling, None, Computing(batch)) for batch in (0, 3)
    ]  # labels differ by row
    torch.testing.assert_close(every[0].x, every[1].x)
    assert torch.equal(every[0].codes, every[1].codes) and every[1].evaluations == 4
    for words in ({"device": "cuda"}, {"precision": "float32"}, {"compile": False}):
        with pytest.raises(UsageError, match="computed on the CPU"):
            open_chosen(tmp_path / "run", NOVEL, 2, sampling, Computing(**words))
