"""A composition handed on: the same samples without the run, and of the silos no more than sampling needs."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data.attributes import Attributed, AttributeSpace, save_attributed
from anabranch.errors import CheckpointError, DataError, RunFolderError, UsageError
from anabranch.runs import (
    Checkpoint,
    ExportedComposition,
    RunFolder,
    Sampling,
    draw_composed,
    draw_every,
    export,
    load_exported,
    train,
)
from tests.runs.composing import NOVEL, STAGES, composing
from tests.runs.test_resume import Killed, killer

STUDENT = STAGES["dcfm-b"]["student"]
METHODS = {
    **{name: {} for name in ("fedflow", "ddm", "ddm-learned", "dfd", "dcfm-a", "dcfm-b", "hybrid")},
    "additive": {"student": STUDENT},
    "additive-late": {"student": {**STUDENT, "since": 0.5}},
    "ddm-exact": {"experts": {"precision": "float64"}},
}
ONE = ("fedflow", "dcfm-b", "additive", "additive-late", "hybrid")  # of these one flow comes
WAYS = (
    Sampling(),
    Sampling(4, "euler", 3, "joint"),
    Sampling(8, "rk4", 5, "composed", (2.0, 0.5), 0.5),
    Sampling(6, "midpoint", 1, "guided", (3.0,), 0.7),
    Sampling(None, "dopri5"),
)


def options(way):
    return vars(way)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run of a method, trained when it is first asked for."""
    place = tmp_path_factory.mktemp("runs")

    def of(name):
        if not (place / name).exists():
            train(composing(name.removesuffix("-late").removesuffix("-exact"), **METHODS[name]), place / name)
        return place / name

    return of


@pytest.fixture
def exported(run, tmp_path):
    return lambda name: export(run(name), tmp_path / name)


def read(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def rewrite(folder, tensors, facts):
    """Another model in place of the exported one, with a card that calls it the right one."""
    save_file(tensors, folder / "model.safetensors", facts)
    card = json.loads((folder / "card.json").read_text())
    card["model"]["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "card.json").write_text(json.dumps(card))


@pytest.mark.parametrize("name", METHODS)
def test_samples_are_those_of_the_run(run, tmp_path, name):
    shutil.copytree(run(name), tmp_path / "run")
    folder = export(tmp_path / "run", tmp_path / "out")
    shutil.rmtree(tmp_path / "run")
    found = load_exported(folder)
    for way in WAYS:
        for attributes in (NOVEL, "horizontal=left,vertical=top", "vertical=top", ""):
            wanted = draw_composed(run(name), attributes, 5, way).x
            assert torch.equal(found.sample(attributes, 5, **options(way)), wanted)
        every = draw_every(run(name), 3, way)
        assert torch.equal(found.sample(every.space.encode(every.codes), **options(way)), every.x)
    assert found.dimension == 2 and found.shape == () and found.encoder is None
    assert not torch.equal(found.sample(NOVEL, 5), found.sample(NOVEL, 5, seed=1))


def test_samples_are_those_of_the_verb(run, exported, tmp_path):
    words = ["--attributes", NOVEL, "--how", "guided", "--weights", "3", "--until", "0.5", "--seed", "7"]
    out = tmp_path / "samples.npy"
    told = CliRunner().invoke(app, ["sample", str(run("dfd")), *words, "--out", str(out)])
    assert told.exit_code == 0
    found = load_exported(exported("dfd")).sample(NOVEL, how="guided", weights=(3.0,), until=0.5, seed=7)
    assert np.array_equal(found.numpy(), np.load(out))


def test_samples_of_images_are_those_of_the_run(tmp_path):
    space = AttributeSpace.of({"side": ["left", "right"], "tone": ["dark", "light"]})
    for name, held in (("north", [0, 1]), ("south", [1, 3])):
        label = torch.tensor(held).repeat(12)
        x = torch.rand(len(label), 48, generator=torch.Generator().manual_seed(len(name))) * 2 - 1
        save_attributed(tmp_path / f"{name}.npz", Attributed(x, label, space))
    files = {"files": [str(tmp_path / f"{name}.npz") for name in ("north", "south")], "attributes": list(space.names)}
    unet = {"network": "conditional-unet", "shape": [3, 4, 4], "channels": 8, "multipliers": [1, 2], "steps": 10}
    config = composing("dcfm-b", files, experts={**unet, "spread": 0.6}, student={"steps": 10})
    train(config, tmp_path / "run")
    found = load_exported(export(tmp_path / "run"))
    wanted = draw_composed(tmp_path / "run", "side=right,tone=dark", 3, Sampling(nfe=4, how="guided", weights=(2.0,)))
    assert torch.equal(found.sample("side=right,tone=dark", 3, 4, how="guided", weights=(2.0,)), wanted.x)
    assert found.shape == wanted.shape == (3, 4, 4) and found.card["model"]["images"] == "3 x 4 x 4"
    page = (tmp_path / "run" / "export" / "card.md").read_text()
    assert "| side=right, tone=dark | novel |" in page and str(tmp_path) not in page


# What is handed on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE)
def test_of_one_flow_neither_experts_nor_counts_go_along(run, exported, name):
    folder = exported(name)
    tensors, facts = read(folder)
    assert {key.split("/")[1] for key in tensors} == {"flow"} and "north" not in json.dumps(facts)
    assert json.loads(facts["counts"]) == {"flow": {"0": 1, "1": 1, "3": 1}}
    checkpoint, _ = RunFolder(run(name)).load_checkpoint()
    assert [checkpoint.facts["counts"][silo][1] > 1 for silo in ("north", "south")] == [True, True]
    for key, expert in checkpoint.state.items():
        if key.startswith("expert/"):
            same = [t for k, t in tensors.items() if k.split("/")[2] == key.split("/")[2] and t.shape == expert.shape]
            assert not any(torch.equal(t, expert) for t in same)
    reveals = load_exported(folder).card["privacy"]["reveals"]
    assert "not by which silo, and not how often" in reveals[1] and len(reveals) == 2


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONE])
def test_experts_go_with_the_counts_that_their_rule_needs_and_the_card_says_so(run, exported, name):
    folder = exported(name)
    found = load_exported(folder)
    tensors, _ = read(folder)
    checkpoint, _ = RunFolder(run(name)).load_checkpoint()
    assert {silo: count.tolist() for silo, count in found.coverage.counts.items()} == checkpoint.facts["counts"]
    assert {key.split("/")[1] for key in tensors if key.startswith("expert/")} == {"north", "south"}
    assert any(key.startswith("router/") for key in tensors) == (name == "ddm-learned")
    assert not any(key.startswith(("shared/", "student/")) for key in tensors)
    page = (folder / "card.md").read_text()
    assert "expert of every silo" in page and "how many samples of each combination each silo has" in page
    assert f"| rule | {RunFolder(run(name)).config().mixture.router} |" in page and "| 2 experts: north, south" in page


def test_the_card_says_what_was_done(run, exported):
    folder = exported("hybrid")
    found, results = load_exported(folder), RunFolder(run("hybrid")).read_json("results.json")
    card, (tensors, _) = found.card, read(folder)
    assert isinstance(found, ExportedComposition) and card["licence"] is None
    assert card["attributes"]["novel"] == ["horizontal=right, vertical=top"]
    assert card["attributes"]["numbers"] == {"known": 3, "novel": 1} and card["attributes"]["problems"] == []
    assert card["attributes"]["outcomes"]["vertical"] == ["top", "bottom"]
    assert card["model"]["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert card["method"]["rounds"] == results["rounds"] and card["method"]["student"]["paths"] == "composed"
    assert "federated" not in card["method"] and "mixture" not in card["method"]
    each = {f["combination"]: f["value"] for f in card["figures"] if f["metric"] == "w2_combination"}
    assert each == {r["combination"]: r["value"] for r in results["rows"] if r["metric"] == "w2_combination"}
    assert not any(figure["metric"].endswith(("_forward", "_seconds")) for figure in card["figures"])
    assert sum(silo["points"] for silo in card["data"]["silos"].values()) == 120
    page = (folder / "card.md").read_text()
    heads = ("Model", "Attributes", "Data", "Method", "Figures", "Privacy", "Versions", "Licence")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(heads)
    assert "| w2_combination: horizontal=right, vertical=top |" in page
    assert "Some silo has seen 3 combinations, and none has seen the other 1." in page


def test_where_experts_came_from_is_said_without_the_path(run, tmp_path):
    train(composing("dcfm-b", composition={"experts_from": str(run("ddm"))}, experts={"penalty": 0.0}), tmp_path / "b")
    folder = export(tmp_path / "b")
    assert load_exported(folder).card["method"]["composition"]["experts_of_an_earlier_run"] is True
    assert not any(str(run("ddm").parent).encode() in path.read_bytes() for path in folder.iterdir())


def test_a_silo_whose_expert_was_lost_is_not_handed_on(run, tmp_path):
    shutil.copytree(run("dcfm-a"), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    whole, _ = folder.load_checkpoint()
    left = {name: tensor for name, tensor in whole.state.items() if not name.startswith("expert/south/")}
    folder.save_checkpoint(Checkpoint(whole.round, left, whole.facts))
    config = folder.read_json("config.json")
    folder.write_json("config.json", {**config, "federation": {**config["federation"], "quorum": 1}})
    found = load_exported(export(tmp_path / "run"))
    assert torch.equal(found.sample("vertical=top", 4), draw_composed(tmp_path / "run", "vertical=top", 4).x)
    assert list(found.coverage.counts) == ["north"] and found.coverage.total.max() == 1


# Refusals ----------------------------------------------------------------------------------------------------------


def test_what_is_not_whole_is_not_exported(run, tmp_path):
    with pytest.raises(Killed):
        train(composing("ddm"), tmp_path / "run", killer(3))
    with pytest.raises(RunFolderError, match="has not finished; end it with 'anabranch resume "):
        export(tmp_path / "run")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        export(run("ddm"), tmp_path)
    shutil.copytree(run("ddm"), tmp_path / "cut")
    for path in (tmp_path / "cut" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="No sound checkpoint is left"):
        export(tmp_path / "cut")
    assert not (tmp_path / "cut" / "export").exists()


@pytest.mark.parametrize(
    ("harm", "words"),
    [("cut", ""), ("other", "not the file that its card describes"), ("pickle", ""), ("empty", ""), ("card", "sha256")],
)
def test_a_damaged_export_is_not_loaded(exported, harm, words):
    folder = exported("ddm")
    model = folder / "model.safetensors"
    if harm == "cut":
        model.write_bytes(model.read_bytes()[:-8])
    elif harm == "other":
        model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
    elif harm == "pickle":
        torch.save({"a": torch.zeros(1)}, model)
    elif harm == "empty":
        model.unlink()
    else:
        (folder / "card.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(DataError, match=f"is no exported model: .*{words}"):
        load_exported(folder)


FOREIGN = [
    ("counts", '{"flow": {"9": 1}}', "combination 9 are counted, and there are 4"),
    ("counts", '{"flow": {"-1": 1}}', "combination -1 are counted, and there are 4"),
    ("counts", '{"flow": {"0": 0.5}}', "whole numbers"),
    ("counts", '{"flow": {"0": 1}, "other": {"1": 1}}', "makes one flow, and 2 are named"),
    ("counts", "{}", "No silo gave its counts"),
    ("counts", '{"flow": {"0": 99999999999999999999}}', ""),
    ("counts", '{"flow": {"0": "1"}}', ""),
    ("counts", "[1]", ""),
    ("counts", "[" * 5000, ""),
    ("space", "[]", ""),
    ("space", '[["a", ["1", "2"]], ["b", ["1", "2", "3"]]]', "its parameters are not those"),
    ("shape", "[3, 4, 4]", "samples of 2 numbers are no images"),
    ("dimension", "0", "samples of 0 numbers"),
    ("dimension", "3", "its parameters are not those that its settings describe"),
    ("settings", '{"method": "vanilla"}', "'vanilla', which composes nothing"),
    ("settings", '{"method": "dcfm-b", "experts": {"hiden": 3}}', "did you mean 'hidden'"),
    ("settings", '{"method": "dcfm-b", "student": {"steps": 4}, "experts": {"hidden": 1000000000000000}}', ""),
    ("settings", "7", ""),
    *((what, None, "") for what in ("settings", "dimension", "space", "counts", "shape")),
]


@pytest.mark.parametrize(("what", "value", "words"), FOREIGN)
def test_foreign_facts_are_refused_with_a_sentence(exported, what, value, words):
    folder = exported("dcfm-b")
    tensors, facts = read(folder)
    changed = {name: text for name, text in {**facts, what: value}.items() if text is not None}
    rewrite(folder, tensors, changed)
    with pytest.raises(DataError, match=f"is no exported model: .*{words}"):
        load_exported(folder)


@pytest.mark.parametrize("harm", ["missing", "more", "shape", "whole numbers", "router", "silo"])
def test_foreign_parameters_are_refused_with_a_sentence(exported, harm):
    folder = exported("ddm-learned")
    tensors, facts = read(folder)
    first = next(name for name in tensors if name.startswith("expert/north/"))
    if harm == "missing":
        del tensors[first]
    elif harm == "more":
        tensors["expert/east/weight"] = torch.zeros(1)
    elif harm == "shape":
        tensors[first] = tensors[first][:1].clone()
    elif harm == "whole numbers":
        tensors[first] = tensors[first].long()
    elif harm == "router":
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("router/")}
    else:
        facts = {**facts, "counts": facts["counts"].replace("north", "east")}
    rewrite(folder, tensors, facts)
    with pytest.raises(DataError, match="its parameters are not those that its settings describe"):
        load_exported(folder)


@pytest.mark.parametrize(
    ("asked", "more", "words"),
    [
        ("vertical=tp", {}, "did you mean 'top'"),
        (NOVEL, {"count": 0}, "0 samples were asked for"),
        (NOVEL, {"how": "compose"}, "did you mean 'composed'"),
        (NOVEL, {"until": 0.5}, "none are given"),
        (torch.tensor([4]), {}, "names no combination"),
        (torch.tensor([0.5]), {}, "names no combination"),
        (torch.tensor([1]), {"count": 3}, "a row of labels and no number"),
        (torch.tensor([[1, 0]]), {}, "a row of labels and no number"),
    ],
)
def test_what_cannot_be_sampled_gets_a_sentence(exported, asked, more, words):
    with pytest.raises(UsageError, match=words):
        load_exported(exported("dcfm-b")).sample(asked, **more)
