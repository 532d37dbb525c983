"""Hours of the paper's scale, from rounds that were measured."""

from pathlib import Path

import pytest

from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _projection as projection


def test_seconds_a_round_do_not_count_what_comes_once():
    log = [(10, "duals", 5.0), (20, "duals", 5.4), (30, "flow", 70.0), (40, "flow", 72.0), (50, "flow", 74.0)]
    log += [(60, "flow", 90.0), (70, "flow", 92.0), (71, "assign", 93.0)]
    records = [{"round": number, "phase": phase, "seconds": seconds} for number, phase, seconds in log]
    assert projection.seconds_a_round(records) == {"duals": pytest.approx(0.04), "flow": pytest.approx(0.2)}


def test_hours_of_the_papers_scale_follow_from_measured_rounds():
    """Of the flow by its operations: twice the channels are nearly four times as many; of the rest as they are."""
    found = recipe("ffm-cifar10")
    cells = {
        scale: StudyCell("alpha-0.3", "sd", 0, scale, found.options("alpha-0.3", "sd", scale), Path(), 1)
        for scale in ("small", "paper")
    }
    small, paper = (projection.operations_a_round(study.config_of(cells[scale])) for scale in ("small", "paper"))
    assert 3.6 < paper / small < 4.0
    key = {"problem": "alpha-0.3", "method": "sd", "seed": 0, "nfe": None}
    values = {"flow_round_seconds": 0.02, "duals_round_seconds": 0.005, "assign_round_seconds": 0.25}
    values["round_operations"] = float(small)
    rows = [{**key, "metric": metric, "value": value} for metric, value in values.items()]
    rows += [
        {**row, "method": "vanilla"} for row in rows if row["metric"] in ("flow_round_seconds", "round_operations")
    ]
    tables = dict(study.tables(rows))
    (title,) = (title for title in tables if "hours" in title)
    assert title.startswith("alpha-0.3: hours of the scale 'paper'")
    flow, ratio = 400_000 * 0.02 * paper / small / 3600, paper / small
    rest = (8000 * 0.005 + 1048576 / 8192 * 0.25) / 3600
    assert tables[title][1:] == [
        ["sd", "20", f"{ratio:.3g}", "400000", f"{flow + rest:.3g}", "–"],
        ["vanilla", "20", f"{ratio:.3g}", "400000", f"{flow:.3g}", "38.3"],
    ]
    assert not set(values) & {column for line in tables.values() for column in line[0]}


def test_a_pooled_round_and_one_of_three_silos_count_what_is_asked():
    def of(name, problem, method):
        options = recipe(name).options(problem, method, "paper")
        return projection.operations_a_round(
            study.config_of(StudyCell(problem, method, 0, "paper", options, Path(), 1))
        )

    vanilla = of("ffm-cifar10", "alpha-0.3", "vanilla")
    assert vanilla == 3 * of("ffm-cifar10", "alpha-0.3", "pooled")
    assert vanilla == of("ffm-cifar10-32", "32-silos-alpha-0.5", "vanilla")  # three of 32


@pytest.mark.parametrize(("problem", "method"), [("alone", "sd"), ("digits", "lot"), ("alpha-0.1", "pooled")])
def test_where_there_is_no_such_run_there_are_no_hours(problem, method):
    assert projection.projection(problem, method, {"flow_round_seconds": 0.1, "round_operations": 1e9}) is None


def test_a_cell_tells_what_hours_need(everything):
    _, rows = everything
    told = {row["metric"]: row["value"] for row in rows if row["method"] == "sd" and row["nfe"] is None}
    assert told["round_operations"] > 0 and told["duals_round_seconds"] > 0
