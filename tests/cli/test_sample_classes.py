"""Samples of a class, as a person types them: of a run, and of a model that was handed on."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import load_samples
from anabranch.errors import UsageError
from anabranch.runs import RunFolder, export, load_exported, resume, train
from tests.runs.test_images import config
from tests.runs.test_resume import Killed, assert_same_end, killer
from tests.runs.tiny import tiny


def run(*words):
    return CliRunner().invoke(app, ["sample", *(str(word) for word in words)])


def said(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run, and what was exported of it."""
    path = tmp_path_factory.mktemp("digits")
    train(config(flow={"classes": 10, "rounds": 6}), path / "run")
    export(path / "run", path / "model")
    return path


@pytest.mark.parametrize("kind", ["run", "model"])
def test_each_class_in_turn(digits, kind, tmp_path):
    def sampled(label, *more):
        path = tmp_path / f"{label}.npy"
        result = run(digits / kind, "--class", label, "--n", 12, "--nfe", 2, "--out", path, *more)
        assert result.exit_code == 0, result.output
        return torch.from_numpy(np.load(path))

    every = sampled("each", "--batch", 5)
    for number, x in enumerate(every):  # all begin from the same noise; another batch rounds otherwise
        torch.testing.assert_close(sampled(number % 10)[number], x, rtol=1e-4, atol=1e-5)
    assert (sampled(3) - sampled(4)).abs().max() > 1e-3


def test_classes_lie_beside_the_images(digits, tmp_path):
    result = run(digits / "run", "--class", "each", "--n", 12, "--nfe", 2, "--out", tmp_path / "x.npz")
    assert result.exit_code == 0, result.output
    found = np.load(tmp_path / "x.npz")
    assert found["images"].shape == (12, 8, 8, 1)
    assert found["label"].tolist() == [number % 10 for number in range(12)]
    assert load_samples(tmp_path / "x.npz").label.tolist() == found["label"].tolist()  # a labelled set by itself


def test_a_model_that_was_handed_on_samples_the_same(digits, tmp_path):
    arguments = ("--class", 3, "--weights", 2, "--n", 4, "--nfe", 3, "--out", tmp_path / "x.npy")
    assert run(digits / "run", *arguments).exit_code == 0
    found = load_exported(digits / "model").sample(4, nfe=3, label=3, weight=2.0)
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "x.npy")), found)
    plain = load_exported(digits / "model").sample(4, nfe=3, label=3)
    assert not torch.allclose(plain, found)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--class", "10"), "The class is '10'; give a number from 0 to 9, or 'each'"),
        (("--class", "cat"), "The class is 'cat'"),
        (("--weights", "2"), "give a --class with --weights and --until"),
        (("--class", "1", "--weights", "1,2"), "a class has one weight"),
        (("--class", "1", "--weights", "nan"), "weight of guidance cannot be nan"),
        (("--class", "1", "--until", "7"), "cannot last until t = 7"),
        (("--class", "1", "--how", "guided"), "leave out --attributes, --grid and --how"),
    ],
)
def test_refused(digits, words, why):
    result = run(digits / "run", *words)
    assert result.exit_code != 0 and why in said(result)


def test_a_flow_that_is_told_none(tmp_path):
    train(tiny(), tmp_path / "run")
    result = run(tmp_path / "run", "--class", 1)
    assert result.exit_code != 0 and "told no classes" in said(result)


@pytest.mark.parametrize("name", ["points.npy", "points.npz", "rows.csv"])
def test_data_without_labels(tmp_path, name):
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    np.save(tmp_path / "points.npy", x)
    np.savez(tmp_path / "points.npz", x=x)
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(f"{a:.3f},{b:.3f}" for a, b in x))
    settings = tiny(flow={"classes": 2, "source": "gaussian"}, data={"files": [str(tmp_path / name)], "groups": []})
    with pytest.raises(UsageError, match=r"flow\.classes is for labels"):
        train(settings, tmp_path / "run")


@pytest.mark.parametrize("apart", [True, False])
def test_pictures_without_folders_of_classes(tmp_path, monkeypatch, apart):
    """Two flat folders would be two classes, one a silo."""
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    for name in ("north", "south"):
        for number in range(6):
            path = tmp_path / name / (f"{number % 2}/" if apart else "") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 40 * number).save(path)
    files = [f"folder:{tmp_path / name}" for name in ("north", "south")]
    settings = config(data={"files": files, "partition": "iid", "images": 0, "held_out": 0.0}, flow={"classes": 2})
    if apart:
        train(settings, tmp_path / "run")
    else:
        with pytest.raises(UsageError, match="give each class a folder"):
            train(settings, tmp_path / "run")


@pytest.mark.parametrize("coupling", ["independent", "minibatch"])
def test_killed_and_resumed_runs_end_bit_equal(tmp_path, coupling):
    settings = tiny(flow={"classes": 2}, coupling={"name": coupling})
    train(settings, tmp_path / "whole")
    with pytest.raises(Killed):
        train(settings, tmp_path / "killed", killer(8))
    resume(tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    assert RunFolder(tmp_path / "whole").config().flow.classes == 2
