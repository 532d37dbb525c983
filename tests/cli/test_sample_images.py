"""Samples of images as a person types them: a picture, an archive, a folder, and what is refused."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from anabranch.cli import _sample_shown
from anabranch.cli._verbs import app
from anabranch.flow import integrate
from anabranch.runs import _sample, train
from tests.runs.test_images import config
from tests.runs.tiny import tiny


def run(*words):
    return CliRunner().invoke(app, ["sample", *(str(word) for word in words)])


def said(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "run"
    train(config(), path)
    return path


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    path = tmp_path_factory.mktemp("points") / "run"
    train(tiny(), path)
    return path


def test_the_same_images_in_one_picture_an_archive_and_a_folder(images, tmp_path):
    for out in ("x.npz", "pictures/"):
        result = run(images, "--nfe", 3, "--n", 10, "--batch", 4, "--device", "cpu", "--out", f"{tmp_path}/{out}")
        assert result.exit_code == 0, result.output
        assert "10 samples with 3 function evaluations each," in said(result) and "samples a second:" in said(result)
    found = np.load(tmp_path / "x.npz")["images"]
    assert found.shape == (10, 8, 8, 1) and found.dtype == np.uint8
    pictures = [np.asarray(Image.open(tmp_path / "pictures" / f"{number:05d}.png")) for number in range(10)]
    assert np.array_equal(found[..., 0], np.stack(pictures))
    assert run(images, "--nfe", 3, "--n", 4, "--device", "cpu", "--out", tmp_path / "x.png").exit_code == 0
    sheet = np.asarray(Image.open(tmp_path / "x.png"))
    zoom = 800 // 16
    gap = zoom // 2
    second = sheet[gap : gap + 8 * zoom, 2 * gap + 8 * zoom : 2 * gap + 16 * zoom]
    assert np.abs(second[::zoom, ::zoom].astype(int) - pictures[1]).max() <= 1  # another batch rounds otherwise
    again = run(images, "--nfe", 3, "--n", 10, "--device", "cpu", "--out", tmp_path / "pictures")
    assert "All 10 samples were there already" in said(again)


def test_the_evaluations_of_dopri5_are_told(images, tmp_path):
    result = run(images, "--solver", "dopri5", "--n", 6, "--batch", 3, "--out", tmp_path / "x.npz")
    assert result.exit_code == 0, result.output
    told = float(said(result).split("with ")[1].split()[0])
    drawing = _sample.open_flow(images, 6, _sample.Sampling(None, "dopri5"), _sample.Computing(3))
    assert told == pytest.approx(sum(flow.evaluations for flow in drawing.parts()) / 2) and told > 6


def test_ctrl_c_says_what_was_written_and_the_same_command_goes_on(images, tmp_path, monkeypatch):
    calls = []

    def interrupted(*words):
        calls.append(1)
        if len(calls) == 4:  # the first only looks whether the solver can be
            raise KeyboardInterrupt
        return integrate(*words)

    words = (images, "--nfe", 1, "--n", 10, "--batch", 4, "--out", f"{tmp_path}/pictures/")
    monkeypatch.setattr(_sample, "integrate", interrupted)
    monkeypatch.setattr("anabranch.runs._sample_drawing.integrate", interrupted)
    stopped = run(*words)
    assert (
        stopped.exit_code == 130 and "8 of 10 samples are in" in said(stopped) and "goes on from there" in said(stopped)
    )
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 8
    result = run(*words)
    assert result.exit_code == 0 and "10 samples, 8 of which were there already, with 1 function" in said(result)
    calls.clear()
    stopped = run(*words[:-1], tmp_path / "x.npz")
    assert stopped.exit_code == 130 and "x.npz was not written" in said(stopped).replace("- ", "-")
    assert not (tmp_path / "x.npz").exists()


def test_a_bar_is_shown_on_a_terminal_where_there_is_something_to_wait_for(images, tmp_path, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(_sample_shown, "console", Console(file=stream, force_terminal=True, width=80))
    assert run(images, "--nfe", 1, "--n", 3, "--out", tmp_path / "x.npz").exit_code == 0
    assert stream.getvalue() == ""
    assert run(images, "--nfe", 1, "--n", 9, "--batch", 3, "--out", tmp_path / "x.npz").exit_code == 0
    assert "9/9" in stream.getvalue()


def test_half_precision_falls_back_aloud(images, tmp_path):
    result = run(images, "--n", 2, "--precision", "bfloat16", "--device", "cpu", "--out", tmp_path / "x.npz")
    assert result.exit_code == 0 and "'bfloat16' is not used, because this CPU" in said(result)


def test_one_picture_has_a_few_images_unless_told(images, tmp_path):
    result = run(images, "--nfe", 1, "--out", tmp_path / "x.png")
    assert said(result).startswith("64 samples with 1 function evaluation each")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--n", 401, "--out", "x.png"],
            "at most 400 images, and 401 were asked for; give --n 400, or write them to a",
        ),
        (["--out", "x.jpeg"], "End the name in .png for one picture of all, in .npz for an archive"),
        (["--out", "pictures"], "or in / for a folder"),
        (["--batch", 0], "at least one sample is computed at a time"),
        (["--n", -3], "ask for at least one"),
        (["--nfe", 0], "nfe = 0"),
        (["--solver", "dopri5", "--nfe", 5], "leave out --nfe 5"),
        (["--device", "gpu"], "did you mean 'cpu'"),
        (["--precision", "half"], "Known: bfloat16, float32"),
        (["--device", "cpu", "--compile"], "pays on a GPU"),
        (["--attributes", "a=b"], "knows no attributes"),
    ],
)
def test_wrong_words_get_a_sentence_and_leave_nothing(images, words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(images, *words)
    assert result.exit_code == 2 and sentence in said(result)
    assert not list(tmp_path.iterdir())


def test_points_are_no_pictures(points, tmp_path):
    result = run(points, "--out", f"{tmp_path}/pictures/")
    assert result.exit_code == 2 and "the samples of this run are no images; write rows to .npy" in said(result)
    assert not list(tmp_path.iterdir())
    assert run(points, "--n", 5, "--out", tmp_path / "x.npz").exit_code == 0
    assert np.load(tmp_path / "x.npz")["x"].shape == (5, 2)


def test_a_place_that_cannot_be_written_is_said(images, tmp_path):
    (tmp_path / "file").write_text("")
    for out in ("pictures/", "x.npz", "x.png"):
        result = run(images, "--n", 2, "--out", f"{tmp_path}/file/{out}")
        assert result.exit_code == 1 and "could not be written" in said(result)


def test_help_teaches():
    words = said(run("--help"))
    for part in ("--nfe 3 --n 64 --out grid.png", "--out pictures/", "--batch", "bfloat16", "goes on behind them"):
        assert part in words.replace("│ │ ", ""), part
