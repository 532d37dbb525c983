"""The kinds of question that a method needs: enough to train it, and none to spare."""

from collections import Counter

import pytest
import torch

from anabranch.errors import QuorumError, UsageError
from anabranch.federation import read_log
from anabranch.methods.ffm import PRESETS, FlowServer, Histograms
from anabranch.methods.tables import agree
from anabranch.runs import from_dict, merged, train
from anabranch.sites import kinds_of, open_site, questions

METHODS = list(PRESETS)


def config(lab, method, **changes):
    return from_dict(merged(PRESETS[method], lab.tiny, {"potential": PRESETS[method].get("potential", {})}, changes))


def run(federation, settings, number, tables):
    if tables:
        agree(federation)
    federation.open(f"run {number}", seed=1)
    server = FlowServer(settings, federation)
    for progress in server.run():
        assert not progress.failures
    federation.keep(0)
    federation.rewind(progress.round)
    edges = torch.linspace(-1, 1, 5).repeat(3, 1)
    replies = federation.ask(Histograms(torch.randn(3, federation.dimension), edges))
    assert not replies.failures


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_site_that_answers_these_kinds_can_take_part_and_needs_them_all(tmp_path, lab, method, tables):
    data = "rows.csv" if tables else "points.npy"
    folders = [lab.site(tmp_path / name, method, data) for name in "ab"]
    federation = lab.connected(*map(open_site, folders))
    for number, steps in enumerate((0, 2)):
        run(federation, config(lab, method, flow={"local_steps": steps}).settings, number, tables)
    entries = list(read_log(folders[0] / "audit.jsonl"))
    assert {entry["verdict"] for entry in entries} == {"answered"}
    assert {entry["kind"] for entry in entries} == set(kinds_of(method, tables))


def test_a_site_with_one_kind_less_cannot(tmp_path, lab):
    kinds = tuple(kind for kind in kinds_of("sd") if kind != "ffm.award")
    federation = lab.connected(open_site(lab.site(tmp_path / "a", kinds=kinds)))
    with pytest.raises(QuorumError, match=r"'ffm\.award': its policy does not list it"):
        run(federation, config(lab, "sd").settings, 0, False)


def test_settings_count_where_they_differ_from_the_preset(lab):
    beside = config(lab, "got-entropic", potential={"every": 3}).settings
    assert "ffm.share" in kinds_of("got-entropic") and "ffm.share" not in kinds_of(beside)


def test_a_misspelt_method_is_named():
    with pytest.raises(UsageError, match="did you mean 'vanilla'"):
        kinds_of("vanila")


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_questions_are_counted_as_a_run_asks_them(tmp_path, lab, method, steps):
    for first, name in enumerate(("a.csv", "b.csv")):
        lab.table(tmp_path / name, first=10 * first)
    data = {"files": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], "held_out": 0.3}
    settings = config(lab, method, data=data, flow={"local_steps": steps})
    rows = train(settings, tmp_path / "run")
    sent = {row["kind"]: row["messages"] for row in rows if row["metric"] == "bytes_down" and row["silo"] == "a"}
    counted = Counter()
    for asked in questions(settings, tables=True):
        counted[asked.kind] += asked.messages
    assert dict(counted) == sent


def test_answers_are_counted_as_limits_count_them(tmp_path, lab):
    settings = config(lab, "sd")
    site = open_site(lab.site(tmp_path / "a", "sd", limits={"ffm.lookup": 10**6}))
    run(lab.connected(site), settings.settings, 0, False)
    spent = int(site.silo.state["answered/ffm.lookup"])
    assert spent == sum(asked.answers for asked in questions(settings) if asked.kind == "ffm.lookup") == 20 * 64 + 500
