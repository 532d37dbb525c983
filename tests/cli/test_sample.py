"""Compositions as a person types them: train, sample, coverage, report."""

import csv
import struct

import numpy as np
import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data.attributes import attributed, save_attributed
from anabranch.runs import RunFolder, train
from tests.runs.composing import NOVEL, composing

TEXT = """
method = "dcfm-b"
[data]
target = "corners"
points = 120
partition = "combinations"
[data.combinations]
north = ["horizontal=left,vertical=top", "horizontal=left,vertical=bottom"]
south = ["horizontal=left,vertical=bottom", "horizontal=right,vertical=bottom"]
[experts]
steps = 20
hidden = 8
batch = 16
[student]
steps = 20
batch = 16
trajectories = 16
path_steps = 4
[evaluation]
points = 32
nfe = [4]
[run]
threads = 1
"""


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def said(result):
    return " ".join(result.output.split())


def size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    (place / "mine.toml").write_text(TEXT)
    result = run("train", place / "mine.toml", "--out", place / "b")
    assert result.exit_code == 0, result.output
    assert "hits, novel" in result.output and "report.html" in result.output
    return place / "b"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    place = tmp_path_factory.mktemp("images")
    x = np.random.default_rng(0).uniform(-1, 1, (90, 12)).astype("float32")
    codes = np.arange(90) % 6
    keep = codes != 5
    for name, part in (("a", slice(None, 45)), ("b", slice(45, None))):
        own = keep[part]
        arrays = {
            "kind": np.array(list("xyz"))[codes % 3][part][own],
            "size": np.array(list("sl"))[codes // 3][part][own],
        }
        np.savez(place / f"{name}.npz", x=x[part][own], shape=np.array([3, 2, 2]), **arrays)
    files = [str(place / "a.npz"), str(place / "b.npz")]
    train(composing("ddm", {"files": files, "attributes": ["kind", "size"]}), place / "run")
    return place / "run"


def test_the_report_of_a_composition_shows_every_combination(trained):
    page = (trained / "report.html").read_text()
    assert "Samples of every combination" in page and "hits, novel" in page and "experts.survey" in page
    assert "flows that compose the attributes of corners" in page
    width, height = size(trained / "figures" / "combinations-mine-dcfm-b.png")
    assert width > 300 and height > 300
    again = run("report", trained, "--out", trained.parent / "page.html")
    assert again.exit_code == 0 and "hits, novel" in again.output
    assert "finished; nothing to resume" in said(run("resume", trained))


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.png"])
def test_samples_of_chosen_attributes_in_every_form(trained, tmp_path, name):
    result = run("sample", trained, "--attributes", NOVEL, "--n", 7, "--nfe", 4, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert "7 samples of a combination that no silo has seen, with 4 function evaluations" in said(result)
    assert "does not follow" not in said(result)
    if name.endswith(".npy"):
        assert np.load(tmp_path / name).shape == (7, 2)
    elif name.endswith(".csv"):
        rows = list(csv.DictReader((tmp_path / name).open()))
        assert len(rows) == 7 and rows[0]["horizontal"] == "right" and rows[0]["vertical"] == "top"
    else:
        assert min(size(tmp_path / name)) > 300


def test_guidance_moves_samples_away_from_those_without(trained, tmp_path):
    drawn = {}
    three = ["guided", "--weights", "3"]
    one, early = ["guided", "--weights", "1"], [*three, "--until", "0.3"]
    ways = {"joint": ["joint"], "one": one, "three": three, "early": early}
    for name, words in ways.items():
        out = tmp_path / f"{name}.npy"
        result = run("sample", trained, "--attributes", NOVEL, "--n", 5, "--nfe", 4, "--how", *words, "--out", out)
        assert result.exit_code == 0, result.output
        drawn[name] = np.load(out)
    assert np.allclose(drawn["joint"], drawn["one"], atol=1e-5)
    assert not np.allclose(drawn["joint"], drawn["three"], atol=1e-3)
    far, near = (np.linalg.norm(drawn[name] - drawn["joint"]) for name in ("three", "early"))
    assert 1e-3 < near < far


def test_images_come_on_a_sheet_and_in_a_grid(images, tmp_path):
    result = run("sample", images, "--attributes", "kind=x,size=s", "--out", tmp_path / "sheet.png")
    assert result.exit_code == 0 and "16 samples of a combination that 2 of 2 silos have seen" in said(result)
    assert min(size(tmp_path / "sheet.png")) > 200
    result = run("sample", images, "--grid", "--n", 3, "--out", tmp_path / "grid.png")
    assert result.exit_code == 0 and "6 combinations, 1 of them seen by no silo" in said(result)
    assert min(size(tmp_path / "grid.png")) > 200


def test_images_of_chosen_attributes_as_an_archive_and_a_folder(images, tmp_path):
    for out in ("x.npz", "pictures/"):
        words = ("--attributes", "kind=x", "--n", 5, "--batch", 2, "--nfe", 4, "--out", f"{tmp_path}/{out}")
        result = run("sample", images, *words)
        assert result.exit_code == 0 and "5 samples with 4 function evaluations each" in said(result), result.output
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        assert file["images"].shape == (5, 2, 2, 3) and file["images"].dtype == np.uint8
        assert file["kind"].tolist() == ["x"] * 5 and file["size"].tolist() == [""] * 5  # which was left open
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 5
    other = run("sample", images, "--attributes", "kind=y", "--n", 5, "--nfe", 4, "--out", tmp_path / "pictures")
    assert other.exit_code == 1 and "another value of attributes" in said(other)
    idle = run("sample", images, "--attributes", "kind=x", "--precision", "bfloat16", "--out", tmp_path / "y.npz")
    assert idle.exit_code == 2 and "computed on the CPU" in said(idle)


def test_a_grid_of_points(trained, tmp_path):
    result = run("sample", trained, "--grid", "--how", "composed", "--weights", "1,2", "--out", tmp_path / "grid.png")
    assert result.exit_code == 0 and "4 combinations, 1 of them seen by no silo" in said(result)
    assert "do not follow" not in said(result)
    assert min(size(tmp_path / "grid.png")) > 300


def test_ways_and_weights_change_samples(trained, tmp_path):
    found = []
    for number, more in enumerate(([], ["--how", "joint"], ["--weights", "2"], ["--solver", "dopri5"], ["--seed", 1])):
        out = tmp_path / f"{number}.npy"
        assert run("sample", trained, "--attributes", NOVEL, "--n", 3, "--out", out, *more).exit_code == 0
        found.append(np.load(out))
    assert all(not np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attributes", "vertical=tp"], "did you mean 'top'"),
        (["--attributes", "vertcal=top"], "did you mean 'vertical'"),
        (["--attributes", NOVEL, "--how", "jont"], "did you mean 'joint'"),
        (["--attributes", NOVEL, "--weights", "1,b"], "give numbers separated by commas"),
        (["--attributes", NOVEL, "--weights", "1,2,3"], "3 weights were given"),
        (["--attributes", NOVEL, "--how", "guided", "--weights", "1,2"], "guidance has one for the whole label"),
        (["--attributes", NOVEL, "--how", "guided"], "give one, as in --how guided --weights 3 --until 0.5"),
        (["--grid", "--how", "guided", "--until", "0.5"], "give one, as in --how guided --weights 3 --until 0.5"),
        (["--attributes", NOVEL, "--until", "0.5"], "and none are given"),
        (["--attributes", NOVEL, "--weights", "2", "--until", "3"], "cannot last until"),
        (["--attributes", NOVEL, "--n", "0"], "ask for at least one"),
        (["--attributes", NOVEL, "--nfe", "0"], "nfe = 0"),
        (["--attributes", NOVEL, "--out", "x.jpg"], "cannot be written as '.jpg'"),
        (["--grid", "--out", "x.npy"], "must end in .png"),
        (["--grid", "--attributes", NOVEL], "give one of both"),
        (["--grid", "--precision", "bfloat16"], "Leave out a GPU, a precision and compiling"),
        (["--attributes", NOVEL, "--compile"], "Leave out a GPU, a precision and compiling"),
    ],
)
def test_wrong_words_get_a_sentence_and_exit_code_2(trained, words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("sample", trained, *words)
    assert result.exit_code == 2 and sentence in said(result)
    assert not list(tmp_path.iterdir())


def test_attributes_of_a_plain_flow_are_refused(tmp_path):
    from tests.runs.tiny import tiny

    train(tiny(), tmp_path / "flow")
    for words in (["--attributes", NOVEL], ["--grid"], ["--how", "joint"], ["--weights", "1"], ["--until", "0.5"]):
        result = run("sample", tmp_path / "flow", *words)
        assert result.exit_code == 2 and "knows no attributes" in said(result)
    assert run("sample", tmp_path / "flow", "--n", 3, "--out", tmp_path / "x.npy").exit_code == 0


def test_a_composition_is_exported(trained, tmp_path):
    result = run("export", trained, "--out", tmp_path / "model")
    assert result.exit_code == 0 and "Exported" in said(result)
    assert "## Attributes" in (tmp_path / "model" / "card.md").read_text()


# Training ----------------------------------------------------------------------------------------------------------


def test_train_starts_from_the_experts_of_another_run(trained, tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT.replace("dcfm-b", "additive"))
    result = run("train", tmp_path / "mine.toml", "--experts", trained, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    phases = [record["phase"] for record in RunFolder(tmp_path / "run").metrics()]
    assert phases == ["experts", "student"]  # one round to take them up, one for twenty steps
    other = run("train", tmp_path / "mine.toml", "--experts", trained, "--out", tmp_path / "x", "--set", "hidden=9")
    assert other.exit_code == 2 and "experts.hidden is 9, and 8 in" in said(other)


def test_infeasible_coverage_is_refused_unless_forced(tmp_path):
    text = TEXT.replace('"horizontal=left,vertical=bottom", "horizontal=right', '"horizontal=right')
    (tmp_path / "mine.toml").write_text(text.replace(', "horizontal=left,vertical=bottom"]', "]"))
    refused = run("train", tmp_path / "mine.toml", "--out", tmp_path / "a")
    assert refused.exit_code == 1 and "do not follow from the observed ones" in said(refused)
    forced = run("train", tmp_path / "mine.toml", "--force", "--out", tmp_path / "b")
    assert forced.exit_code == 0 and "do not follow from the observed ones" in said(forced)
    for asked, follows in ((NOVEL, False), ("horizontal=left,vertical=top", True), ("vertical=top", True)):
        drawn = run("sample", tmp_path / "b", "--attributes", asked, "--nfe", 4, "--out", tmp_path / "x.npy")
        assert drawn.exit_code == 0
        warned = "does not follow from what silos have seen" in " ".join(drawn.stderr.split())
        assert warned == (not follows), drawn.output
    grid = run("sample", tmp_path / "b", "--grid", "--nfe", 4, "--out", tmp_path / "x.png")
    assert "2 of 4 combinations do not follow from what silos have seen" in " ".join(grid.stderr.split())
    plain = run("train", "ffm-2d", "--force", "--out", tmp_path / "c")
    assert plain.exit_code == 2 and "are for compositions" in said(plain)


def test_outcomes_that_differ_only_in_case_are_pointed_out_before_coverage_is_refused(tmp_path):
    kind, size = ["x", "x", "y", "X"] * 5, ["s", "l", "s", "l"] * 5
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 2)), kind=np.array(kind), size=np.array(size))
    (tmp_path / "mine.toml").write_text('method = "ddm"\n[data]\nfiles = ["a.npz"]\nattributes = ["kind", "size"]\n')
    result = run("train", tmp_path / "mine.toml", "--out", tmp_path / "run", "--set", "experts.steps=2")
    assert said(result).startswith("kind has 'X' and 'x', which differ only in case; they count as different")


def test_coverage_reads_a_run_file(trained, tmp_path):
    result = run("coverage", trained.parent / "mine.toml")
    assert result.exit_code == 0 and "Every combination follows from the observed ones." in result.output
    save_attributed(tmp_path / "a.npz", attributed("corners", count=20))
    assert run("coverage", tmp_path / "a.npz").exit_code == 0
    (tmp_path / "flow.toml").write_text('method = "lot"\n')
    refused = run("coverage", tmp_path / "flow.toml")
    assert refused.exit_code == 2 and "knows no attributes" in said(refused)
