"""Samples of models that were handed on, as a person types them: those of the run that they come from."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.runs import draw_samples, export, train
from tests.runs.composing import NOVEL, composing
from tests.runs.test_images import config
from tests.runs.tiny import tiny

KNOWN = "horizontal=left,vertical=top"


def run(*words):
    return CliRunner().invoke(app, ["sample", *(str(word) for word in words)])


def said(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Of each kind a run and what was exported of it; the run is moved away from where it was trained."""
    place, found = tmp_path_factory.mktemp("pairs"), {}
    for name in ("north", "south"):
        rows = [f"{20 + number % 30},{'day' if number % 3 else 'night'}" for number in range(40)]
        (place / f"{name}.csv").write_text("\n".join(["age,shift", *rows]))
    files = [str(place / f"{name}.csv") for name in ("north", "south")]
    kinds = {
        "points": tiny(),
        "images": config(flow={"precision": "bfloat16"}),
        "table": tiny(data={"files": files, "groups": [], "held_out": 0.2}, flow={"source": "gaussian"}),
        "dcfm-b": composing("dcfm-b"),
        "ddm": composing("ddm"),
    }
    for name, settings in kinds.items():
        train(settings, place / name)
        model = export(place / name, place / f"{name}-model")
        found[name] = place / "runs" / name, model
        shutil.move(place / name, place / "runs" / name)
    return found


@pytest.mark.parametrize(
    ("kind", "words", "ending"),
    [
        ("points", ["--n", 7, "--nfe", 3, "--seed", 5], ".npy"),
        ("points", ["--n", 7, "--solver", "dopri5"], ".npy"),
        ("points", ["--n", 7], ".csv"),
        ("table", ["--n", 9], ".csv"),
        ("images", ["--n", 5, "--nfe", 2], ".npz"),
        ("images", ["--nfe", 2], ".png"),
        ("dcfm-b", ["--attributes", NOVEL, "--nfe", 4], ".npy"),
        ("ddm", ["--attributes", NOVEL, "--nfe", 4, "--how", "guided", "--weights", 3], ".csv"),
    ],
)
def test_a_model_gives_the_file_that_its_run_gives(pairs, kind, words, ending, tmp_path):
    texts = []
    for place, name in zip(pairs[kind], ("run", "model"), strict=True):
        result = run(place, *words, "--out", tmp_path / f"{name}{ending}")
        assert result.exit_code == 0, result.output
        texts.append(said(result).split(" with ")[0])
    if ending == ".npz":  # an archive tells when it was written
        first, second = (np.load(tmp_path / f"{name}.npz")["images"] for name in ("run", "model"))
        assert first.shape == (5, 8, 8, 1) and np.array_equal(first, second)
    else:
        assert (tmp_path / f"run{ending}").read_bytes() == (tmp_path / f"model{ending}").read_bytes()
    if kind != "dcfm-b":
        assert texts[0] == texts[1]


def test_rows_of_a_table_come_in_its_own_columns(pairs, tmp_path):
    assert run(pairs["table"][1], "--n", 4, "--out", tmp_path / "x.csv").exit_code == 0
    head, *rows = (tmp_path / "x.csv").read_text().split()
    assert head == "age,shift" and {row.split(",")[1] for row in rows} <= {"day", "night"}


def test_draw_samples_takes_a_model_as_well(pairs):
    of_run, of_model = (draw_samples(place, 6, 4, seed=2).x1 for place in pairs["points"])
    assert torch.equal(of_run, of_model)


def test_a_folder_of_pictures_goes_on_only_with_the_same_model(pairs, tmp_path):
    of_run, model = pairs["images"]
    words = ["--nfe", 1, "--batch", 1, "--out", f"{tmp_path}/pictures/"]
    assert run(model, "--n", 3, *words).exit_code == 0
    more = run(model, "--n", 5, *words)
    assert "5 samples, 3 of which were there already," in said(more)
    assert len([Image.open(path) for path in (tmp_path / "pictures").glob("*.png")]) == 5
    other = run(of_run, "--n", 6, *words)
    assert other.exit_code != 0 and len(list((tmp_path / "pictures").glob("*.png"))) == 5


def test_one_flow_knows_what_was_seen_and_not_by_whom(pairs, tmp_path):
    for kind, attributes, words in [
        ("dcfm-b", NOVEL, "that no silo has seen"),
        ("dcfm-b", KNOWN, "that some silo has seen"),
        ("ddm", KNOWN, "of 2 silos have seen"),
    ]:
        result = run(pairs[kind][1], "--attributes", attributes, "--nfe", 2, "--out", tmp_path / "x.npy")
        assert result.exit_code == 0 and words in said(result)


def test_a_grid_names_the_model_and_its_method(pairs, tmp_path):
    result = run(pairs["dcfm-b"][1], "--grid", "--nfe", 2, "--n", 3, "--out", tmp_path / "g.png")
    assert result.exit_code == 0 and "4 combinations, 1 of them seen by no silo" in said(result)
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("kind", "words"), [("points", ["--attributes", "a=b"]), ("images", ["--grid"])])
def test_attributes_of_a_plain_model_are_refused(pairs, kind, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(pairs[kind][1], *words)
    assert result.exit_code == 2 and "knows no attributes" in said(result) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("harm", ["cut", "other", "card", "metadata"])
@pytest.mark.parametrize("kind", ["points", "ddm"])
def test_a_damaged_model_gets_a_sentence(pairs, kind, harm, tmp_path):
    folder = shutil.copytree(pairs[kind][1], tmp_path / "model")
    model = folder / "model.safetensors"
    if harm == "cut":
        model.write_bytes(model.read_bytes()[:-8])
    elif harm == "other":
        model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
    elif harm == "card":
        (folder / "card.json").write_text(json.dumps({"model": {}, "method": {}}))
    else:
        from safetensors.torch import load_file, save_file

        save_file(load_file(model), model)
    result = run(folder, "--out", tmp_path / "x.npy")
    assert result.exit_code == 1 and "is no exported model" in said(result) and not (tmp_path / "x.npy").exists()


def test_what_is_neither_a_run_nor_a_model_is_said(tmp_path):
    result = run(tmp_path, "--out", tmp_path / "x.npy")
    assert result.exit_code == 1 and "no run folder" in said(result) and "no folder that export wrote" in said(result)
