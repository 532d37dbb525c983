"""A run handed on: the same samples without the run, and a card that says what is true."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.errors import AnabranchError, CheckpointError, DataError, RunFolderError
from anabranch.runs import RunFolder, draw_samples, export, load_exported, train
from tests.runs.tiny import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "points"
    train(tiny(coupling={"name": "semidiscrete", "group": 4}, privacy={"lookup_noise": 0.25}), path)
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    for name, first in (("north", 20), ("south", 50)):
        rows = [f"{first + number % 30},{'day' if number % 3 else 'night'}" for number in range(40)]
        (place / f"{name}.csv").write_text("\n".join(["age,shift", *rows]))
    files = [str(place / f"{name}.csv") for name in ("north", "south")]
    train(tiny(data={"files": files, "groups": [], "held_out": 0.2}, flow={"source": "gaussian"}), place / "run")
    return place / "run"


def same_samples(path, folder, solver="euler", nfe=4):
    wanted = draw_samples(path, 7, nfe, solver, seed=3).x1
    return torch.equal(load_exported(folder).sample(7, nfe, solver, seed=3), wanted)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_samples_are_those_of_the_run(tmp_path, precision):
    train(tiny(flow={"precision": precision}), tmp_path / "run")
    folder = export(tmp_path / "run", tmp_path / "out")
    assert same_samples(tmp_path / "run", folder) and same_samples(tmp_path / "run", folder, "rk4", 8)


def test_the_run_is_not_needed_any_more(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    folder = export(tmp_path / "copy", tmp_path / "out")
    shutil.rmtree(tmp_path / "copy")
    assert same_samples(run, folder)


def test_a_source_of_points_goes_with_the_model(tmp_path):
    np.save(tmp_path / "source.npy", np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    source = {"source": str(tmp_path / "source.npy")}
    train(tiny(flow=source), tmp_path / "run")
    folder = export(tmp_path / "run")
    assert same_samples(tmp_path / "run", folder) and folder == tmp_path / "run" / "export"
    assert "300 given points" in (folder / "card.md").read_text()
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in folder.iterdir())


def test_the_card_says_what_was_done(run, tmp_path):
    card = load_exported(export(run, tmp_path / "out")).card
    results = RunFolder(run).read_json("results.json")
    assert card["licence"] is None and card["method"]["rounds"] == results["rounds"]
    assert card["method"]["semidiscrete"]["noises"] == 512 and "potential" not in card["method"]
    assert "noise on semi-discrete answers: 0.25" in card["privacy"]["guards"]
    assert "groups of at least 4 points" in card["privacy"]["guards"][-1]
    up = sum(row["value"] for row in results["rows"] if row["metric"] == "bytes_up")
    assert sum(silo["bytes_up"] for silo in card["data"]["silos"].values()) == up > 0
    assert {silo["points"] for silo in card["data"]["silos"].values()} == {40}
    w2 = [(row["nfe"], row["value"]) for row in results["rows"] if row["metric"] == "w2"]
    assert [(f["nfe"], f["value"]) for f in card["figures"] if f["metric"] == "w2"] == w2
    page = (tmp_path / "out" / "card.md").read_text()
    assert all(f"## {name}\n" in page for name in ("Model", "Data", "Method", "Figures", "Privacy", "Licence"))
    assert "simulated on one machine" in page and card["versions"]["torch"] in page


def test_real_sites_and_pooled_data_are_called_so(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    RunFolder(tmp_path / "run").write_json("engine.json", {"engine": "nvflare", "federation": "kits"})
    card = load_exported(export(tmp_path / "run")).card
    assert "No row left a site" in card["data"]["where"] and "not known here" in card["privacy"]["guards"][0]
    train(tiny(data={"pooled": True}), tmp_path / "pooled")
    card = load_exported(export(tmp_path / "pooled")).card
    assert "one place" in card["data"]["where"] and card["data"]["silos"]["pooled"]["points"] == 80


def test_samples_of_tables_can_be_decoded(tables, tmp_path):
    found = load_exported(export(tables, tmp_path / "out"))
    rows = found.encoder.decode(found.sample(5))
    assert rows.names == ("age", "shift") and set(rows.columns["shift"]) <= {"day", "night"}
    assert "every category" in found.card["privacy"]["reveals"][-1]
    assert str(tables.parent) not in (tmp_path / "out" / "card.json").read_text()


def files(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


class TestRefusals:
    @pytest.fixture
    def copy(self, run, tmp_path):
        return Path(shutil.copytree(run, tmp_path / "run"))

    @pytest.fixture
    def refused(self, tmp_path):
        """Asks for an export that must not be; it leaves every file as it was, and no new one."""

        def ask(error, words, run, out=None):
            before = files(tmp_path)
            with pytest.raises(error, match=words):
                export(run, out)
            assert files(tmp_path) == before

        return ask

    def test_what_is_no_run(self, refused, tmp_path):
        refused(RunFolderError, "is no run folder", tmp_path)
        (tmp_path / "config.json").write_text("{")
        refused(RunFolderError, "cannot be used", tmp_path)
        assert list(tmp_path.iterdir()) == [tmp_path / "config.json"]

    def test_an_unfinished_run(self, refused, copy):
        (copy / "results.json").unlink()
        refused(RunFolderError, "has not finished; end it with 'anabranch resume ", copy)
        assert not (copy / "export").exists()

    def test_a_run_without_its_last_checkpoint(self, refused, copy):
        *_, last = sorted((copy / "checkpoints").iterdir())
        last.write_bytes(last.read_bytes()[:-1])
        refused(CheckpointError, "last sound checkpoint", copy)
        for path in (copy / "checkpoints").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        refused(CheckpointError, "No sound checkpoint is left", copy)
        shutil.rmtree(copy / "checkpoints")
        refused(CheckpointError, "no checkpoint any more", copy)
        assert not (copy / "export").exists()

    def test_a_folder_that_is_not_empty(self, refused, run, tmp_path):
        (tmp_path / "mine.txt").write_text("mine")
        refused(RunFolderError, "is not empty", run, tmp_path)
        refused(RunFolderError, "is not empty", run, tmp_path / "mine.txt")
        assert (tmp_path / "mine.txt").read_text() == "mine"

    @pytest.mark.parametrize("harm", ["cut", "other", "card", "pickle", "empty"])
    def test_a_damaged_export_is_not_loaded(self, run, tmp_path, harm):
        folder = export(run, tmp_path / "out")
        model, card = folder / "model.safetensors", folder / "card.json"
        if harm == "cut":
            model.write_bytes(model.read_bytes()[:-8])
        elif harm == "other":
            model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
        elif harm == "card":
            card.write_text(json.dumps({"model": {}}))
        elif harm == "pickle":
            torch.save({"a": torch.zeros(1)}, model)
        else:
            model.unlink()
        with pytest.raises(DataError):
            load_exported(folder)

    def test_a_network_that_is_not_known_here(self, run, tmp_path):
        from safetensors import safe_open
        from safetensors.torch import save_file

        folder = export(run, tmp_path / "out")
        with safe_open(folder / "model.safetensors", "pt") as file:
            facts, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts["settings"] = facts["settings"].replace('"mlp"', '"mine"')
        save_file(tensors, folder / "model.safetensors", facts)
        import hashlib

        card = json.loads((folder / "card.json").read_text())
        card["model"]["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        (folder / "card.json").write_text(json.dumps(card))
        with pytest.raises(AnabranchError, match="no network 'mine'"):
            load_exported(folder)


def test_the_verb(run, tmp_path):
    words = ["export", str(run), "--out", str(tmp_path / "out")]
    first, second = (CliRunner().invoke(app, words) for _ in range(2))
    assert first.exit_code == 0 and "Exported" in first.output
    assert second.exit_code == 1 and "not empty" in " ".join(second.output.split())
