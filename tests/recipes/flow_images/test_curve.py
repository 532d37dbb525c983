"""Distances while a flow trains."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.errors import RunFolderError, UsageError
from anabranch.recipes import recipe
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images._curve_pictures import curve_figures
from anabranch.report._style import style
from anabranch.runs import Notes, RunFolder, export, resume, train
from tests.recipes.flow_images.cells import PAPERS, cell, cells_of

CURVE = {"minutes": [1e-9, 2e-9, 500], "nfe": [2], "count": 10}
ROUNDS = {"rounds": [2, 1], "nfe": [2, 1], "count": 12}


def test_a_curve_is_measured_while_the_flow_trains(tmp_path):
    one = cell(tmp_path, "vanilla", curve=CURVE)
    rows = [row for row in study.run(one) if row["metric"].startswith("curve_")]
    assert [(row["metric"], row["minutes"]) for row in rows] == [
        (f"curve_pixels_{split}", minutes) for minutes in (1e-9, 2e-9) for split in ("train", "test")
    ]  # the run is over before 500 minutes are
    assert all(row["round"] == 1 and row["seconds"] > 0 and row["images"] == 10 for row in rows)
    assert rows[0]["value"] == rows[2]["value"]  # both after the first round
    figure = study.draw(rows, [], tmp_path)["digits: distance of pixels, test images against minutes of training"]
    assert figure.stat().st_size > 5000
    title, lines = study.tables(rows)[1]
    assert title == "digits: distance of pixels while training, test images, 2 steps, 10 samples"
    assert lines[0] == ["method", "1e-09 min", "2e-09 min"]


def test_a_curve_that_ends_with_training_ends_in_the_final_figure(tmp_path):
    """The last point of the curve and the table's figure are of one flow: equal samples, equal distance."""
    changes = {
        "flow": {"rounds": 10**6},
        "run": {"minutes": 0.02},
        "curve": {"minutes": [0.02], "nfe": [2], "count": 12},
    }
    rows = study.run(cell(tmp_path, "vanilla", **changes))
    value = {row["metric"]: row["value"] for row in rows if row["nfe"] == 2 and "solver" not in row}
    assert value["curve_pixels_test"] == value["pixels_test"]
    rounds = [row["value"] for row in rows if row["metric"] == "flow_rounds"]
    assert rounds == [row["round"] for row in rows if row["metric"] == "curve_pixels_test"] and rounds[0] < 10**6


def test_what_a_curve_has_is_not_measured_again(tmp_path, monkeypatch):
    one = cell(tmp_path, "vanilla", curve=CURVE)
    config, folder = study.config_of(one), RunFolder(one.folder / study.RUN)
    looked = []
    curve = study.Curve(one, config, folder, lambda: looked.append(1) or study.Eyes(one.options, config, "cpu"))

    def kill(progress, federation):
        if progress.round == 2:
            raise SystemExit

    with pytest.raises(SystemExit):
        train(config, folder.path, Notes(progress=kill, looks=curve.looks))
    assert len(looked) == 2 and curve.looks.after == [500 * 60.0]
    train(config, folder.path, Notes(looks=curve.looks))
    assert len(looked) == 2 and len(curve.rows) == 4


def test_a_curve_by_rounds_has_every_number_of_steps_and_ends_in_the_final_figures(tmp_path):
    """Rounds are those of the flow, also where duals were fitted before; equal flows have equal samples."""
    rows = study.run(cell(tmp_path, "sd", curve=ROUNDS))
    test = [row for row in rows if row["metric"] == "curve_pixels_test"]
    assert [(row["flow_rounds"], row["nfe"]) for row in test] == [(1, 2), (1, 1), (2, 2), (2, 1)]
    assert {row["images"] for row in test} == {12} and not any("minutes" in row for row in test)
    before = test[0]["round"] - 1
    assert before > 30 and test[-1]["round"] == before + 2
    final = {row["nfe"]: row["value"] for row in rows if row["metric"] == "pixels_test" and "solver" not in row}
    assert {row["nfe"]: row["value"] for row in test[2:]} == final
    assert all(row["value"] != final[row["nfe"]] for row in test[:2])


@pytest.mark.parametrize(("count", "looks"), [(12, [1]), (10, [1, 2])])
def test_the_finished_flow_is_sampled_once_where_the_table_has_it(tmp_path, monkeypatch, count, looks):
    taken = []
    look = study.Curve._look
    monkeypatch.setattr(study.Curve, "_look", lambda self, mark, *more: taken.append(mark) or look(self, mark, *more))
    one = cell(tmp_path, "vanilla", curve={**ROUNDS, "count": count})
    rows = study.run(one)
    test = [row for row in rows if row["metric"] == "curve_pixels_test"]
    assert taken == looks and len(test) == 4 and {row["images"] for row in test} == {count}
    done = RunFolder(one.folder / "run").read_json("results.json")
    assert all(row["seconds"] == done["seconds"] for row in test[2:]) == (count == 12)
    again = study.Curve(one, *_opened(one.folder))
    assert again.looks.after == []


def _opened(folder):
    run = RunFolder(folder / "run")
    return run.config(), run, lambda: None


def test_curves_by_rounds_are_small_multiples_and_tables(tmp_path):
    row = {"problem": "p", "seed": 0, "metric": "curve_fid_test", "images": 99, "seconds": 1.0, "round": 7}
    rows = [
        {**row, "method": method, "nfe": nfe, "flow_rounds": rounds, "value": value * rounds / nfe}
        for method, value in (("vanilla", 6.0), ("sd", 3.0))
        for rounds in (1000, 2000)
        for nfe in (3, 10)
    ]
    rows.append({**rows[0], "seed": 1, "value": rows[0]["value"] + 2})
    shown = dict(study.tables(rows))
    assert shown["p: FID while training, test images, 3 steps, 99 samples"] == [
        ["method", "seeds", "1000 rounds", "2000 rounds"],
        ["vanilla", "2", "2001", "4000"],
        ["sd", "1", "1000", "2000"],
    ]
    assert "p: FID while training, test images, 10 steps, 99 samples" in shown
    drawn = study.draw(rows, [], tmp_path)
    assert [path.name for path in drawn.values()] == ["rounds-p.png", "steps-by-rounds-p.png"]
    assert all(path.stat().st_size > 5000 for path in drawn.values())
    with style():
        figures = {path.name: figure for _, path, figure in curve_figures("p", rows, "fid_test", tmp_path)}
    by_steps, by_rounds = (figures[name].axes for name in ("rounds-p.png", "steps-by-rounds-p.png"))
    titles = [[axes.get_title(loc="left") for axes in panels] for panels in (by_steps, by_rounds)]
    assert titles == [["3 steps", "10 steps"], ["after 1000 rounds", "after 2000 rounds"]]
    values, turned = (
        np.array([[line.get_ydata() for line in axes.get_lines()] for axes in panels])
        for panels in (by_steps, by_rounds)
    )  # (panel, method, place)
    assert values[0].tolist() == [[2001.0, 4000.0], [1000.0, 2000.0]]
    assert np.array_equal(values, turned.transpose(2, 1, 0))


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ({"minutes": [1], "nfe": [2]}, "needs minutes or rounds, nfe and count"),
        ({"minutes": [0], "nfe": [2], "count": 3}, "needs minutes or rounds"),
        ({"minutes": [1], "nfe": 2, "count": 3}, "as lists"),
        ({"rounds": [], "nfe": [2], "count": 3}, "as lists"),
        ({"minutes": [1], "rounds": [1], "nfe": [2], "count": 3}, "needs minutes or rounds"),
        ({"rounds": [1, 3], "nfe": [2], "count": 3}, "after round 3, and it trains for 2; lower curve.rounds"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(tmp_path, curve, words):
    with pytest.raises(UsageError, match=words):
        study.run(cell(tmp_path, "vanilla", curve=curve))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_alone_the_curve_ends_with_the_minutes(scale):
    found = recipe("ffm-cifar10-alone")
    for problem, method, _ in found.cells(scale):
        options = found.options(problem, method, scale)
        assert options["curve"]["minutes"][-1] == options["run"]["minutes"] and options["alone"]
        assert options["sampling"]["count"] == (300 if scale == "smoke" else 50_000)


@pytest.mark.parametrize("name", PAPERS)
def test_curves_of_the_papers_figures_end_with_training_and_in_the_tables(name):
    asked = set()
    for one in cells_of(name):
        if "curve" in one.options:
            config, curve = study.config_of(one), one.options["curve"]
            study.Curve(one, config, RunFolder(Path()), lambda: None)  # refuses what cannot be
            assert max(curve["rounds"]) == config.flow.rounds
            assert set(curve["nfe"]) <= set(one.options["nfe"]) and curve["count"] == one.options["sampling"]["count"]
            asked.add((one.scale, one.problem))
    problems = {"ffm-cifar10": ["alpha-0.3", "alpha-0.1"], "ffm-ablation": ["batch"]}.get(name, [])
    assert asked >= {(scale, problem) for scale in ("small", "paper") for problem in problems}


def test_a_cell_goes_on_as_a_cell_or_its_curve_would_have_gaps(tmp_path, monkeypatch):
    """Only the cell looks at its run: whoever resumes the run, or takes the cell for one, learns what to do."""
    one = cell(tmp_path, "vanilla", curve=CURVE)
    RunFolder(one.folder).write_json("config.json", {"study": "flow_images", "method": "vanilla"})
    folder, said = RunFolder(one.folder / study.RUN), []

    def stop(progress, federation):
        if progress.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(study.config_of(one), folder.path, Notes(progress=stop, say=said.append))
    assert said[-1] == "Stopped after round 1; continue with the same 'anabranch reproduce'."
    with pytest.raises(RunFolderError, match="go on with the same 'anabranch reproduce'"):
        resume(folder.path)
    for ask in (resume, export, lambda path: RunFolder(path).config()):
        with pytest.raises(RunFolderError, match=f"is a cell of a recipe; its run is {folder.path}"):
            ask(one.folder)
    with monkeypatch.context() as there:
        there.chdir(folder.path)
        with pytest.raises(RunFolderError, match="go on with the same 'anabranch reproduce'"):
            resume(Path())
    with pytest.raises(RunFolderError, match="or continue that run with the same 'anabranch reproduce'"):
        train(replace(study.config_of(one), seed=7), folder.path)
    study.run(one)
    resume(folder.path)  # it is finished: nothing is done
    RunFolder(one.folder).write_json("results.json", {"rows": []})
    told = CliRunner().invoke(app, ["resume", str(one.folder)])
    assert told.exit_code and "nothing to resume" not in told.output
