"""A composition on every engine: the same experts, to the bit."""

import json

import pytest
import torch

from anabranch.engines import train_on
from anabranch.errors import AnabranchError
from anabranch.federation import read_log
from anabranch.runs import Notes, RunFolder, draw_composed
from tests.runs.composing import NOVEL, composing


def state(path):
    checkpoint, _ = RunFolder(path).load_checkpoint()
    return checkpoint.state


def figures(rows):
    return [row for row in rows if "seconds" not in row["metric"]]


@pytest.fixture(scope="module")
def config():
    return composing("dcfm-a", peers={"rounds": 1}, federation={"patience": 30})


@pytest.fixture(scope="module")
def local(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "run"
    before = torch.get_num_threads()
    rows = train_on("local", config, path, Notes())
    torch.set_num_threads(before)
    return path, rows


@pytest.mark.parametrize("engine", ["nvflare-sim", "flower-sim"])
def test_sites_train_the_experts_of_one_process(config, local, tmp_path, engine):
    path, seen = tmp_path / "run", []
    rows = train_on(engine, config, path, Notes(lambda progress, federation: seen.append(progress.phase)))
    ours, theirs = state(local[0]), state(path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert figures(rows) == figures(local[1])  # also every byte of every message
    assert list(dict.fromkeys(seen)) == ["experts", "peers"]
    assert torch.equal(draw_composed(path, NOVEL, 3).x, draw_composed(local[0], NOVEL, 3).x)
    counted = [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
    for site in (path / "sites").iterdir():
        assert site.stat().st_mode & 0o777 == 0o700  # it holds a copy of the data
        logged = list(read_log(site / "audit.jsonl"))
        assert {entry["verdict"] for entry in logged} == {"answered"}
        assert [entry["answer"] for entry in logged] == [
            line["answer"] for line in counted if line.get("accepted") == site.name
        ]


def test_another_method_starts_from_experts_at_sites_too(local, tmp_path):
    config = composing("hybrid", composition={"experts_from": str(local[0])})
    train_on("local", config, tmp_path / "local", Notes())
    train_on("nvflare-sim", config, tmp_path / "run", Notes())
    ours, theirs = state(tmp_path / "local"), state(tmp_path / "run")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_shape_of_images_is_learned_from_sites(tmp_path):
    data = {"target": "colored-digits", "points": 400, "silos": 2, "partition": "iid", "observed": "band"}
    train_on("nvflare-sim", composing("ddm", data), tmp_path / "run", Notes())
    assert RunFolder(tmp_path / "run").load_arrays("samples.npz")["cell_shape"].tolist() == [3, 8, 8]


def test_coverage_that_does_not_suffice_is_refused_there_too(tmp_path):
    held = {"north": ["horizontal=left,vertical=top"], "south": ["horizontal=right,vertical=bottom"]}
    data = {"target": "corners", "points": 60, "partition": "combinations", "combinations": held}
    with pytest.raises(AnabranchError, match="do not follow from the observed ones"):
        train_on("nvflare-sim", composing("ddm", data), tmp_path / "run", Notes())
