"""Sites whose samples have attributes: what they are asked, how they are set up, and what they refuse."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data.attributes import attributed, save_attributed
from anabranch.errors import UsageError
from anabranch.federation import Envelope, Refused, decode, encode_question, read_log
from anabranch.methods.dcfm import COMPOSITIONS, CompositionServer
from anabranch.methods.experts import ExpertSettings, Prepare, settings_to_json
from anabranch.methods.ffm import Histograms
from anabranch.runs import train
from anabranch.sites import (
    SiteData,
    SitePolicy,
    SiteSettings,
    check_site,
    kinds_of,
    new_settings,
    open_site,
    questions,
    read_site,
    write_site,
)
from tests.runs.composing import composing

METHODS = ["fedflow", "ddm", "ddm-learned", "dcfm-a", "dcfm-a-simultaneous", "dcfm-b", "hybrid"]
NAMES = ("horizontal", "vertical")


def archive(path, first=0, count=80):
    data = attributed("corners", count=count, seed=first, observed=["horizontal=left,vertical=top", 1, 3])
    save_attributed(path, data)
    return path


def site(folder, method="dcfm-a", kinds=None):
    folder.mkdir(parents=True)
    archive(folder / "data.npz", first=len(folder.name))
    policy = SitePolicy(kinds or kinds_of(method), smallest_group=4)
    settings = SiteSettings(folder.name, SiteData("data.npz", held_out=0.25, attributes=NAMES), policy)
    write_site(folder, settings, 5)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_a_site_that_answers_these_kinds_can_take_part_and_needs_them_all(tmp_path, lab, method):
    folders = [site(tmp_path / name, method) for name in ("a", "bb")]
    federation = lab.connected(*map(open_site, folders))
    federation.open("run", seed=1)
    server = CompositionServer(composing(method, experts={"batch": 16}).composed, federation)
    for progress in server.run():
        assert not progress.failures
    federation.keep(0)
    federation.rewind(progress.round)
    assert not federation.ask(Histograms(torch.eye(2), torch.tensor([[-1.0, 1.0]] * 2))).failures
    entries = list(read_log(folders[0] / "audit.jsonl"))
    assert {entry["verdict"] for entry in entries} == {"answered"}
    assert {entry["kind"] for entry in entries} == set(kinds_of(method))


@pytest.mark.parametrize("method", METHODS)
def test_questions_are_counted_as_a_run_asks_them(tmp_path, method):
    files = [str(archive(tmp_path / f"{name}.npz", first)) for first, name in enumerate("ab")]
    config = composing(method, {"files": files, "attributes": list(NAMES), "held_out": 0.3})
    rows = train(config, tmp_path / "run")
    sent = {row["kind"]: row["messages"] for row in rows if row["metric"] == "bytes_down" and row["silo"] == "a"}
    counted = Counter()
    for asked in questions(config):
        counted[asked.kind] += asked.messages
    assert dict(counted) == sent


def test_starting_from_experts_asks_to_restore_them(tmp_path):
    config = composing("dcfm-b", composition={"experts_from": str(tmp_path)})
    kinds = kinds_of(config)
    assert "experts.restore" in kinds and "experts.train" not in kinds
    assert "experts.restore" not in kinds_of("dcfm-b") and "experts.train" in kinds_of("dcfm-b")


def test_every_composition_has_kinds_and_a_misspelt_one_is_named():
    for method in COMPOSITIONS:
        assert {"experts.survey", "experts.prepare", "ffm.histograms"} <= set(kinds_of(method))
    with pytest.raises(UsageError, match="did you mean 'dcfm-a'"):
        kinds_of("dcfm-aa")


# Folders -----------------------------------------------------------------------------------------------------------


def test_attributes_and_outcomes_survive_site_toml(tmp_path):
    outcomes = {"horizontal": ("left", "right"), "vertical": ("top", 'bot"tom')}
    settings = SiteSettings("a", SiteData("data.npz", attributes=NAMES, outcomes=outcomes))
    write_site(tmp_path / "a", settings)
    assert read_site(tmp_path / "a") == settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "a.csv", "attributes": NAMES}, "only .npz archives"),
        ({"file": "a.npz", "attributes": NAMES, "outcomes": {"x": ("1", "2")}}, "the same attributes"),
    ],
)
def test_attributes_that_cannot_be_get_a_sentence(options, words):
    with pytest.raises(UsageError, match=words):
        SiteData(**options)


def test_a_site_knows_its_samples_by_their_attributes(tmp_path):
    folder = site(tmp_path / "a")
    silo = open_site(folder).silo
    assert silo.space.attributes == (("horizontal", ("left", "right")), ("vertical", ("bottom", "top")))
    assert len(silo) == 60 and len(silo.held_out_label) == 20
    told = {"horizontal": ("left", "right", "middle"), "vertical": ("top", "bottom")}
    settings = SiteSettings("b", SiteData(str(folder / "data.npz"), held_out=0.25, attributes=NAMES, outcomes=told))
    write_site(tmp_path / "b", settings)
    other = open_site(tmp_path / "b").silo
    assert other.space.sizes == (3, 2)
    assert sorted(other.data.x[:, 0].tolist()) != sorted(silo.data.x[:, 0].tolist())  # held out by name
    assert set(other.space.decode(other.data.label)[:, 0].tolist()) == {0, 1}


def test_init_and_check_of_a_site_that_composes(tmp_path):
    def anabranch(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    folder = tmp_path / "north"
    folder.mkdir()
    archive(folder / "data.npz", count=400)
    made = anabranch("site", "init", folder, "--data", folder / "data.npz", "--method", "dcfm-a")
    assert made.exit_code == 0, made.output
    assert read_site(folder).data.attributes == NAMES and "dcfm.peers" in read_site(folder).policy.kinds
    text = 'method = "dcfm-a"\n[data]\ntarget = "arrays at sites"\n[experts]\nhidden = 8\nsteps = 200\nbatch = 32\n'
    (tmp_path / "run.toml").write_text(text)
    found = anabranch("site", "check", folder, "--recipe", tmp_path / "run.toml")
    assert found.exit_code == 0, found.output
    assert "3 of 4 combinations" in found.output and "This site can take part" in found.output
    assert "a generative model of this site's samples leaves it" in " ".join(found.output.split())
    (tmp_path / "small.toml").write_text(text.replace("batch = 32", "batch = 8"))
    refused = anabranch("site", "check", folder, "--recipe", tmp_path / "small.toml")
    assert refused.exit_code == 1 and "experts.batch is 8" in refused.output
    named = anabranch(
        "site", "init", tmp_path / "s", "--data", folder / "data.npz", "--attributes", "vertcal,horizontal"
    )
    assert named.exit_code == 1 and "has no array 'vertcal'" in named.output and not (tmp_path / "s").exists()


def test_a_rehearsal_weighs_what_a_run_sends(tmp_path):
    files = [str(archive(tmp_path / f"{name}.npz", first)) for first, name in enumerate("ab")]
    config = composing("hybrid", {"files": files, "attributes": list(NAMES), "held_out": 0.25})
    rows = train(config, tmp_path / "run")
    folder = site(tmp_path / "a", "hybrid")
    found = check_site(folder, config)
    assert found.ok, found.obstacles
    costs = {line[1]: line for line in found.costs[1:]}
    sent = {row["kind"]: row["value"] / row["messages"] for row in rows if row["metric"] == "bytes_down"}
    assert set(costs) == {kind for kind in kinds_of("hybrid") if kind != "rewind"}
    for kind in ("dcfm.adopt", "gathered"):
        number, unit = costs[kind][4].split()
        size = float(number) * {"B": 1, "kB": 1e3}[unit] / int(costs[kind][2])
        assert size == pytest.approx(sent[kind], rel=0.06)


def test_a_run_that_composes_needs_attributes_at_the_site(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "points.npy", np.zeros((60, 2), dtype="float32"))
    write_site(folder, SiteSettings("a", SiteData("points.npy"), SitePolicy(kinds_of("ddm"))))
    found = check_site(folder, composing("ddm", {"target": "arrays at sites"}))
    assert any("data.attributes names none" in obstacle for obstacle in found.obstacles)
    with pytest.raises(UsageError, match=r"no \.npz archive"):
        new_settings(tmp_path / "b", folder / "points.npy", method="dcfm-b")


@pytest.mark.parametrize(
    "change",
    [{"hidden": 10**9}, {"layers": 10**7}, {"embedding": 10**9}, {"network": 5}, {"hidden": "8"}, {"batch": 10**9}],
)
def test_settings_that_no_site_can_afford_are_refused_at_once(tmp_path, change):
    opened = open_site(site(tmp_path / "a"))
    settings = json.dumps(json.loads(settings_to_json(ExpertSettings())) | change)
    question = Prepare(settings, opened.silo.space.to_json())
    assert isinstance(decode(opened.answer(encode_question(Envelope("run", 0, 1, question)))), Refused)
