"""Every part gives figures that can be believed; files take them in beside those of earlier runs."""

import json
import math
from collections import defaultdict

import pytest
import torch
from typer.testing import CliRunner

from anabranch.bench.images import (
    Case,
    ImageFigures,
    ImageRow,
    image_checks,
    image_tables,
    loss_difference,
    measure_images,
    roofline,
    work_of,
)
from anabranch.bench.images._clock import timed, tuned
from anabranch.bench.images._work import METHODS
from anabranch.cli._verbs import app
from anabranch.errors import DataError, UsageError

BRIEF = {"held": 32, "warm_up": 1, "steps": 1, "turns": 1, "samples": 4, "evaluations": 2, "loss_steps": 4, "fit": 4}


def brief(**changes):
    return work_of("cpu", **{**BRIEF, "table": 256, "lookups": 64, "cases": (Case(2, 4),), **changes})


def figures(*rows):
    found = ImageFigures({"device": "a"}, {"channels": 1})
    found.add(rows)
    return found


def test_every_part_gives_figures_that_are_finite_and_positive(tmp_path):
    told = []
    found = measure_images(brief(), ["step", "sampling", "loss"], tmp_path / "f.json", told.append)
    by_part = defaultdict(list)
    for row in found.rows.values():
        by_part[row.part].append(row.what)
        for name, value in row.figures.items():
            if name == "overhead":
                assert value > -1
            elif name == "gibibytes":
                assert value is None  # torch counts it on GPUs only
            else:
                assert math.isfinite(value) and value > 0, (row.what, name)
    assert by_part == {
        "roofline": ["float32"],
        "step": ["peer", *METHODS],
        "sampling": ["peer", "ours"],
        "loss": ["ours", "sequential"],
    }
    difference = loss_difference(found, "2x4")
    assert difference.value < 0.01 and difference.steps == 4 and difference.whole
    assert {row.note for row in found.rows.values() if row.what not in ("peer", "float32")} == {"not compiled"}
    assert any("got" in what for what in told) and any("step 4 of 4" in what for what in told)
    assert json.loads((tmp_path / "f.json").read_text()) == found.record()


def test_ratios_are_those_of_the_times_beside_them():
    found = measure_images(brief(methods=("lot",)), ["step"])
    peer, vanilla, lot = (found.find("step", "2x4", what) for what in ("peer", "vanilla", "lot"))
    assert lot["speedup"] == pytest.approx(peer["milliseconds"] / lot["milliseconds"])
    assert lot["overhead"] == pytest.approx(lot["milliseconds"] / vanilla["milliseconds"] - 1)
    best = found.of_part("roofline")[0]["teraflops"]
    assert lot["of_roofline"] == pytest.approx(lot["teraflops"] / best)
    assert lot["least_milliseconds"] == pytest.approx(lot["milliseconds"] * lot["of_roofline"])


def test_the_roofline_is_the_rate_of_the_product():
    best = roofline(brief(product=32))
    assert (best.size, best.precision) == (32, "float32")
    assert best.least(best.rate) == pytest.approx(1000)
    assert 1e6 < best.rate < 1e14


def test_a_later_run_adds_to_the_file_and_replaces_what_it_measures_again(tmp_path):
    path = tmp_path / "deep" / "f.json"
    measure_images(brief(methods=()), ["step"], path)
    before = json.loads(path.read_text())["rows"]
    measure_images(brief(), ["sampling"], path)
    after = json.loads(path.read_text())["rows"]
    assert [row["part"] for row in after] == ["roofline", "step", "step", "sampling", "sampling"]
    assert after[1:3] == before[1:3]
    assert after[0]["teraflops"] != before[0]["teraflops"]  # measured in the later run too


def test_rows_are_saved_as_they_come(tmp_path, monkeypatch):
    path = tmp_path / "f.json"

    def stop(what):
        if "vanilla" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_images(brief(), ["step"], path, stop)
    assert [row["what"] for row in json.loads(path.read_text())["rows"]] == ["float32", "peer"]


def test_figures_of_another_network_are_refused_before_anything_is_measured(tmp_path):
    path = tmp_path / "f.json"
    figures(ImageRow("step", "2x4", "lot", {"milliseconds": 1.0})).save(path)
    with pytest.raises(UsageError, match=r"another machine \(device: a"):
        measure_images(brief(), ["step"], path, lambda what: pytest.fail("measured"))


@pytest.mark.parametrize("text", ["", "[]", '{"machine": {}}', '{"machine": {}, "network": {}, "rows": [1]}'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="does not hold figures"):
        measure_images(brief(), ["step"], path)
    assert path.read_text() == text


def test_a_folder_is_no_file_for_figures(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        measure_images(brief(), ["step"], tmp_path)


def test_a_loss_that_is_no_number_is_an_error():
    with pytest.raises(DataError, match="gone astray"):
        figures(ImageRow("loss", "2x4", "ours", {"loss": math.nan}))


def both_losses(here, there):
    return figures(ImageRow("loss", "3x128", "ours", here), ImageRow("loss", "3x128", "sequential", there))


def test_losses_of_different_lengths_are_not_compared():
    def both(steps):
        return both_losses({"loss": 0.99, "steps": 2000}, {"loss": 1.0, "steps": steps})

    assert loss_difference(both(2000), "3x128").value == pytest.approx(0.01)
    assert loss_difference(both(1000), "3x128") is None
    assert image_checks(both(1000)) == []


def test_a_loss_that_was_cut_is_compared_as_far_as_it_came_and_checked_against_nothing():
    whole = {"loss": 0.5, "steps": 40, "of_steps": 40, "loss_after_20": 0.8, "loss_after_40": 0.5}
    cut = {"loss": 0.79, "steps": 20, "of_steps": 40, "loss_after_10": 3.0, "loss_after_20": 0.79}
    found = both_losses(whole, cut)
    difference = loss_difference(found, "3x128")
    assert (difference.value, difference.steps, difference.whole) == (pytest.approx(0.01 / 0.79), 20, False)
    assert image_checks(found) == []
    assert dict(image_tables(found))["Mean loss"][1][-1] == "1.27 % after 20 steps"
    assert loss_difference(both_losses(whole, {**cut, "of_steps": 80}), "3x128") is None  # another rate from the start


def test_the_loss_is_that_of_the_last_quarter_and_is_saved_as_it_goes(tmp_path, monkeypatch):
    """Steps whose loss is their number: of 40 the last quarter is 31 … 40, of 20 it is 16 … 20."""
    path = tmp_path / "f.json"

    class Counting:
        def __init__(self, *arguments, **options):
            self.number = 1
            self.first = self

        @property
        def metrics(self):
            return {"loss": torch.tensor(float(self.number))}

        def step(self):
            self.number += 1
            return self

        def compiled_words(self):
            return "compiled"

    def stop(what):
        if "step 28" in what:
            raise KeyboardInterrupt

    monkeypatch.setattr("anabranch.bench.images._loss.OurTraining", Counting)
    with pytest.raises(KeyboardInterrupt):
        measure_images(brief(loss_steps=40), ["loss-ours"], path, stop)
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["steps"], row["of_steps"], row["loss"], row["loss_after_20"]) == (24, 40, 21.5, 18.0)
    found = measure_images(brief(loss_steps=40), ["loss-ours"]).find("loss", "2x4", "ours")
    assert (found["steps"], found["loss"], found["loss_after_20"]) == (40, 35.5, 18.0)


def test_limits_hold_from_one_side_only():
    step = [
        ImageRow("step", "3x128", "peer", {"milliseconds": 200.0, "gibibytes": 50.0}),
        ImageRow("step", "3x128", "vanilla", {"speedup": 3.3, "overhead": 0.0, "gibibytes": 8.0}),
        ImageRow("step", "3x128", "lot", {"speedup": 3.0, "overhead": 0.11, "gibibytes": 11.5}),
        ImageRow("step", "32x32", "vanilla", {"speedup": 9.9, "overhead": 0.0}),
        ImageRow("step", "32x32", "lot", {"speedup": 9.0, "overhead": 0.9}),
        ImageRow("sampling", "1000 images, NFE 10", "ours", {"speedup": 3.4}),
        ImageRow("loss", "3x128", "ours", {"loss": 1.02, "steps": 2000}),
        ImageRow("loss", "3x128", "sequential", {"loss": 1.0, "steps": 2000}),
    ]
    assert [(check.ok, check.limit) for check in image_checks(figures(*step))] == [
        (True, 3.3),  # step, 3x128
        (False, 10.0),  # step, 32x32
        (False, 0.10),  # overhead of lot
        (True, 12.0),  # memory, of our couplings and not of the peer
        (True, 3.3),  # sampling
        (False, 0.01),  # loss
    ]
    assert image_checks(figures()) == []


def test_every_line_of_a_table_is_as_long_as_its_header():
    found = figures(
        ImageRow("step", "3x128", "lot", {"milliseconds": 12.34, "speedup": 2.0, "overhead": 0.101}, "a note"),
        ImageRow("loss", "3x128", "ours", {"loss": 1.0, "steps": 4}),
    )
    tables = image_tables(found)
    assert [title for title, _ in tables] == ["Training steps", "Mean loss"]
    for _, lines in tables:
        assert {len(line) for line in lines} == {len(lines[0])}
    assert tables[0][1][1][:5] == ["3x128", "lot", "12.3", "2.00", "10.1 %"]
    assert tables[0][1][0][-2:] == ["at best ms", ""] and tables[0][1][1][-1] == "a note"


def test_hours_of_the_papers_training_are_told_of_its_network_alone():
    row = ImageRow("step", "3x128", "lot", {"milliseconds": 12.34})
    for scale, told in (("paper", True), ("tiny", False)):
        found = ImageFigures({}, work_of("cpu", scale).record())
        found.add([row])
        ((_, lines),) = image_tables(found)
        assert ("h, 400k steps" in lines[0]) is told and {len(line) for line in lines} == {len(lines[0])}
        assert ("1.4" in lines[1]) is told  # 400 000 times 12.34 ms


def test_time_is_the_median_of_turns_and_steps_give_way_to_seconds(monkeypatch):
    asked = []
    spent = iter([2.0, 6.0, 90.0, 9.0])  # the trial, then three turns of three calls in 18 s

    def seconds(task, device, calls):
        asked.append(calls)
        return next(spent)

    monkeypatch.setattr("anabranch.bench.images._clock._seconds", seconds)
    found = timed(lambda: None, torch.device("cpu"), steps=10, turns=3, seconds=18)
    assert asked == [1, 3, 3, 3]
    assert found.milliseconds == 3000 and found.gibibytes is None
    assert found.fastest == 2000


@pytest.mark.parametrize("before", [False, True])
def test_cudnn_is_left_as_it_was(monkeypatch, before):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    with pytest.raises(ZeroDivisionError), tuned():
        assert torch.backends.cudnn.benchmark
        raise ZeroDivisionError
    assert torch.backends.cudnn.benchmark is before


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "images", "--device", "cpu", *arguments])


def test_the_verb_prints_json_last_and_keeps_the_file(tmp_path):
    path = tmp_path / "f.json"
    options = ["--silos", "2", "--batch", "2", "--samples", "2", "--nfe", "1", "--steps", "1", "--method", "vanilla"]
    result = run(*options, "--out", str(path), "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed.pop("checks") == []
    assert printed == json.loads(path.read_text())
    assert printed["machine"]["torch"] == torch.__version__
    again = run(*options, "--part", "sampling", "--out", str(path))
    assert again.exit_code == 0 and "Training steps" in again.stdout and "Sampling" in again.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--part", "stepp"], "did you mean 'step'"),
        (["--silos", "three"], "whole numbers with commas"),
        (["--method", "lott"], "did you mean 'lot'"),
        (["--device", "tpu"], "There is no device 'tpu'"),
    ],
)
def test_the_verb_refuses_in_a_sentence(options, words):
    result = run(*options)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_options_before_the_verb_are_not_lost_silently():
    result = CliRunner().invoke(app, ["bench", "--json", "images"])
    assert result.exit_code == 2 and "after the verb" in result.output
