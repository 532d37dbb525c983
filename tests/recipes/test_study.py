"""Studies: their cells, what a finished one is, which run alone, how checks select rows, and the page."""

import json
import re
import warnings
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.errors import RunFolderError, UsageError
from anabranch.recipes import _reproduce, cells_of, recipe, recipes, reproduce
from anabranch.recipes._names import metric_name
from anabranch.recipes._recipe import Recipe
from anabranch.recipes._study import StudyCell, StudyRun, beside, study
from anabranch.report._study import write_study_report

VALUES = {
    "study": "toy",
    "base": {"rounds": 3, "exact": False, "traffic": {"points": 40}},
    "problems": {"near": {"methods": ["few"], "kind": "traffic", "dimension": 2}, "far": {"dimension": 3}},
    "methods": {"few": {"support": 2}, "many": {"support": 8, "alone": True}},
    "scales": {"smoke": {"seeds": [0, 1], "rounds": 1}, "small": {"seeds": [0], "problems": ["near"]}},
}
RECIPE = Recipe("r", "title", "paper", "about", VALUES)


def cell(folder, **options):
    chosen = {**RECIPE.options("near", "few", "smoke"), **options}
    return StudyRun("toy", StudyCell("near", "few", 0, "smoke", chosen, folder, 1))


def row(value, problem="near", method="few", metric="excess", seed=0, **more):
    return {"problem": problem, "method": method, "seed": seed, "nfe": None, "metric": metric, "value": value, **more}


def finish(one, rows):
    one.path.mkdir(parents=True)
    (one.path / "config.json").write_text(json.dumps(one.record()))
    (one.path / "results.json").write_text(json.dumps({"rows": rows}))


def test_options_are_layers_and_the_scale_has_the_last_word():
    found = RECIPE.options("near", "few", "smoke")
    expected = {"rounds": 1, "exact": False, "traffic": {"points": 40}, "kind": "traffic", "dimension": 2, "support": 2}
    assert found == expected


def test_problems_may_have_methods_of_their_own_and_scales_problems():
    assert RECIPE.cells("smoke", seed=0) == [("near", "few", 0), ("far", "few", 0), ("far", "many", 0)]
    assert RECIPE.cells("small") == [("near", "few", 0)]
    assert RECIPE.cells("small", problems=["far"]) == [("far", "few", 0), ("far", "many", 0)]


def test_a_study_trains_no_flow():
    with pytest.raises(UsageError, match="anabranch reproduce fedwad-toy"):
        recipe("fedwad-toy").config("2d", "s10", "small", 0)


def test_a_cell_is_run_once_and_known_again(tmp_path):
    one = cell(tmp_path / "c")
    assert not one.finished()
    one.run()
    assert one.finished() and one.rows()[0]["metric"] == "numbers"
    first = (one.path / "results.json").stat().st_mtime_ns
    outcome = reproduce(RECIPE, "smoke", [one], 1, lambda *_: None)
    assert outcome.rows == one.rows() and (one.path / "results.json").stat().st_mtime_ns == first


def test_a_finished_cell_with_other_options_is_refused(tmp_path):
    cell(tmp_path / "c").run()
    with pytest.raises(RunFolderError, match="other options than the recipe now says: rounds is 1 there and 2 now"):
        cell(tmp_path / "c", rounds=2).finished()


@pytest.mark.parametrize("method", ["real", "ddm+l", "dcfm-a", "dcfm-b", "fedflow"])
def test_options_that_a_method_does_not_look_at_are_no_other_options(tmp_path, method):
    """What a student, peers or FedFlow are given leaves the figures of methods without them as they are."""
    found = recipe("dcfm-cmnist")

    def of(**options):
        chosen = {**found.options("iid", method, "small"), **options}
        return StudyRun("composition_images", StudyCell("iid", method, 0, "small", chosen, tmp_path / "c", 1))

    finish(of(), [])
    for section, owners in {"student": {"dcfm-b"}, "peers": {"dcfm-a"}, "federated": {"fedflow"}}.items():
        changed = of(**{section: {**of().cell.options[section], "added": 7}})
        if method in owners:
            with pytest.raises(RunFolderError, match=f"{section}.added is not set there and 7 now"):
                changed.finished()
        else:
            assert changed.finished()
    with pytest.raises(RunFolderError, match=r"experts.rate is 0.003 there and 1.0 now"):
        of(experts={**of().cell.options["experts"], "rate": 1.0}).finished()


def test_a_cell_that_fails_leaves_no_results_and_is_named(tmp_path):
    good, bad = cell(tmp_path / "good"), cell(tmp_path / "bad", kind="trafic")
    bad = replace(bad, cell=replace(bad.cell, seed=7))
    outcome = reproduce(RECIPE, "smoke", [good, bad], 1, lambda *_: None)
    assert not bad.finished() and outcome.runs == [good.path] and not outcome.ok
    assert "did you mean 'traffic'" in outcome.failures["near few seed 7"]


def test_a_scale_for_a_gpu_says_so_where_there_is_none(tmp_path, monkeypatch):
    scales = {"smoke": {**VALUES["scales"]["smoke"], "gpu": True, "about": "Days on a GPU."}}
    found = replace(RECIPE, values={**VALUES, "scales": scales})
    assert found.options("near", "few", "smoke") == RECIPE.options("near", "few", "smoke")
    one = cell(tmp_path / "c", kind="trafic")
    for there in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reproduce(found, "smoke", [one], 1, lambda *_: None)
        said = [str(warning.message) for warning in caught]
        assert said == ([] if there else [said[0]])
        assert there or ("is for a GPU, and torch finds none here" in said[0] and said[0].endswith("Days on a GPU."))


def test_cells_that_measure_time_run_last_and_one_at_a_time(tmp_path, monkeypatch):
    """With a pool of pretence: what runs beside what is all that counts."""
    beside_it, running = {}, []

    class Pool:
        def __init__(self, *_, **__):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def submit(self, work, cell):
            running.append(cell)
            for one in running:
                beside_it[one.name] = max(beside_it.get(one.name, 0), len(running))
            return Future()

    def finished(futures):
        future = next(iter(futures))
        running.pop(0)
        future.set_result(None)
        return [future]

    monkeypatch.setattr(_reproduce, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(_reproduce, "_finished", finished)
    cells = cells_of(RECIPE, "smoke", tmp_path, None, [], [])
    reproduce(RECIPE, "smoke", cells, 2, lambda *_: None)
    assert len(beside_it) == len(cells)
    assert {name: most for name, most in beside_it.items() if "many" in name} == {
        "far many seed 0": 1,
        "far many seed 1": 1,
    }
    assert list(beside_it)[-2:] == ["far many seed 0", "far many seed 1"]
    assert max(beside_it.values()) == 2


@pytest.mark.parametrize(("x", "value", "ok"), [(10, 0.5, False), (20, 0.1, True), (30, None, False)])
def test_a_check_selects_rows_and_fails_without_them(tmp_path, x, value, ok):
    one = cell(tmp_path / "c")
    finish(one, [row(0.5, x=10), row(0.1, x=20)])
    check = {"name": "c", "kind": "value", "metric": "excess", "left": "few", "where": {"x": x}, "limit": 0.2}
    found = reproduce(replace(RECIPE, values={**VALUES, "checks": [check]}), "smoke", [one], 1, lambda *_: None)
    assert [(c.value, c.ok) for c in found.checks] == [(value, ok)]


@pytest.mark.parametrize(("problems", "made"), [(["near", "far"], 1), (["far"], 0)])
def test_a_check_of_problems_that_were_not_selected_is_left_out(tmp_path, problems, made):
    one = cell(tmp_path / "c")
    finish(one, [row(0.5)])
    check = {"name": "c", "kind": "value", "metric": "excess", "left": "few", "problems": problems, "limit": 1.0}
    found = reproduce(replace(RECIPE, values={**VALUES, "checks": [check]}), "smoke", [one], 1, lambda *_: None)
    assert len(found.checks) == made and found.ok


def test_ours_stand_beside_the_papers():
    rows = [row(0.5), row(0.7, seed=1), row(0.2, method="many"), row(3.0, metric="seconds")]
    lines = beside(rows, [row(0.4)])
    assert lines[0] == ["problem", "method", "excess", "excess, paper", "seconds"]
    assert lines[1:] == [["near", "few", "0.6 ± 0.14", "0.4", "3"], ["near", "many", "0.2", "–", "–"]]


GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


def test_tables_call_metrics_by_the_glossarys_names():
    """Where a line of the glossary is about one metric, and says by itself which."""
    lines = [line.strip("| ").split(" | ") for line in GLOSSARY.read_text().split("## Metrics")[1].splitlines()]
    alone = [(line[0], line[1].strip("`")) for line in lines if len(line) > 2 and line[1].count("`") == 2]
    assert len(alone) > 30
    for word, metric in alone:
        if not word.startswith(("its ", "for ")) and word != "seconds":
            assert set(word.split()) <= set(re.split(r",? ", metric_name(metric))), metric


def test_no_two_metrics_of_the_glossary_share_a_name():
    metrics = set(re.findall(r"`([a-z0-9_]+)`", GLOSSARY.read_text().split("## Metrics")[1]))
    names = [metric_name(metric) for metric in metrics]
    assert len(metrics) > 60 and len(set(names)) == len(names)


def test_a_tables_header_is_for_people():
    rows = [row(1.0, metric="fid_novel"), row(2.0, metric="w2_unconditional"), row(3.0, metric="who_knows")]
    assert beside(rows, [row(2.0, metric="fid_novel")])[0][2:] == [
        *("FID, novel", "FID, novel, paper"),
        *("W2, unconditional", "who_knows"),
    ]


def test_figures_at_different_x_are_not_mixed():
    assert [line[2:] for line in beside([row(1.0, x=10), row(3.0, x=20)], [])[1:]] == [["10", "1"], ["20", "3"]]


def test_a_study_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="study 'toi'"):
        study("toi")


def test_the_page_holds_everything_and_escapes_it(tmp_path):
    (tmp_path / "p.png").write_bytes(b"bytes")
    checks = [{"name": "a <check>", "value": 1.0, "limit": 2.0, "ok": True}]
    tables = [("A table", [["problem", "figure"], ["<b>", "0.25"]])]
    page = write_study_report(
        tmp_path / "r.html", "Title", "Paper", "About `it`", tables, {"Drawn": tmp_path / "p.png"}, checks
    ).read_text()
    for text in ("a &lt;check&gt;", "&lt;b&gt;", "0.25", "<code>it</code>", "data:image/png;base64,Ynl0ZXM="):
        assert text in page
    assert "<b>" not in page and "http" not in page


@pytest.mark.parametrize("found", [found for found in recipes().values() if found.study], ids=lambda found: found.name)
def test_every_study_of_a_recipe_is_there_and_its_checks_name_what_it_has(found):
    module = study(found.study)
    assert callable(module.run) and callable(module.draw)
    for name in found.values["scales"]:
        assert all(found.options(problem, method, name) is not None for problem, method, _ in found.cells(name))
    for check in found.values.get("checks", []):
        assert set(check.get("problems", [])) <= set(found.problems), check["name"]
        assert all("limit" in part or "at_least" in part for part in check.get("parts", [check]))


def test_figures_are_printed_even_where_a_picture_of_them_fails(tmp_path, monkeypatch):
    words = ["reproduce", "fedwad-toy", "--problems", "traffic-50d", "--methods", "s100", "--jobs", "1"]
    monkeypatch.setattr("anabranch.recipes.present", lambda *arguments: 1 / 0)
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 1 and isinstance(result.exception, ZeroDivisionError)
    assert json.loads(result.stdout.splitlines()[-1])["rows"]


def test_the_verb_prints_json_and_writes_the_page(tmp_path):
    words = ["reproduce", "fedwad-toy", "--problems", "traffic-50d,evolution", "--methods", "s100", "--jobs", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout.splitlines()[-1])
    assert set(printed) == {"rows", "checks", "failures", "pictures"} and not printed["failures"]
    assert {row["problem"] for row in printed["rows"]} == {"traffic-50d", "evolution"}
    assert [path.name for path in map(Path, printed["pictures"].values())] == ["evolution.png"]
    page = (tmp_path / "report.html").read_text()
    assert "numbers_ratio" in {row["metric"] for row in printed["rows"]} and "numbers_ratio" not in page
    assert ">traffic</th>" in page and "data:image/png;base64," in page
    shown = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])  # nothing is run again
    assert shown.exit_code == 0 and "Numbers on the wire" in shown.stdout
