"""A federated distance on every engine: the same figures, to the bit."""

import json

import pytest
import torch

from anabranch.engines import train_on
from anabranch.federation import read_log
from anabranch.runs import Notes, RunFolder, from_dict


@pytest.fixture
def config():
    data = {"target": "8gaussians", "points": 200, "partition": "component", "groups": [[0, 1, 2], [3, 4, 5], [6, 7]]}
    distance = {"support": 12, "rounds": 4, "precision": "float64"}
    return from_dict({"method": "fedwad", "data": data, "distance": distance, "run": {"threads": 1}})


def figures(rows):
    return {(*row["pair"], row["metric"]): row["value"] for row in rows}


@pytest.mark.parametrize("engine", ["nvflare-sim", "flower-sim"])
def test_sites_give_the_distances_of_one_process(config, tmp_path, engine):
    seen = []
    rows = train_on(engine, config, tmp_path / "run", Notes(lambda progress, federation: seen.append(progress.round)))
    assert figures(rows) == figures(train_on("local", config, tmp_path / "local", Notes()))
    assert {row["metric"] for row in rows} >= {"distance", "debiased", "lower_bound", "bytes"}
    assert len({tuple(row["pair"]) for row in rows}) == 3 and seen[-1] == 4
    counted = [json.loads(line) for line in (tmp_path / "run" / "answers.jsonl").read_text().splitlines()]
    for site in (tmp_path / "run" / "sites").iterdir():
        logged = [entry["answer"] for entry in read_log(site / "audit.jsonl") if entry["verdict"] == "answered"]
        assert logged == [line["answer"] for line in counted if line.get("accepted") == site.name]


def test_the_folder_of_a_distance_holds_the_measure_between(config, tmp_path):
    rows = train_on("local", config, tmp_path / "run", Notes())
    arrays = RunFolder(tmp_path / "run").load_arrays("samples.npz")
    a, b = rows[0]["pair"]
    assert arrays[f"{a}|{b}/points"].shape == (12, 2)
    assert torch.as_tensor(arrays[f"{a}|{b}/weight"]).sum() == pytest.approx(1)
    assert train_on("local", config, tmp_path / "run", Notes()) == rows  # a finished one is not computed again
