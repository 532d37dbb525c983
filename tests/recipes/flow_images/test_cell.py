"""A cell of the study is a run that goes on, and tells every figure."""

from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.errors import RunFolderError, UsageError
from anabranch.recipes import cells_of, recipe
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images._cell import _notes
from anabranch.runs import Looks, RunFolder
from tests.recipes.flow_images.cells import METHODS, cell


def test_every_method_has_every_figure(everything):
    _, rows = everything
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        usual = {"pixels_train", "pixels_test", "seconds_50k"}
        euler = [row for row in own if "solver" not in row]
        beside = {f"{side}_pixels_{split}" for side in ("rounded", "precise") for split in ("train", "test")}
        for nfe, more in (
            (1, set()),
            (2, {"memorised_pixels", "pixels_change", *beside}),
        ):  # copies: of the best samples
            assert {row["metric"] for row in euler if row["nfe"] == nfe} == usual | more
        adaptive = [row for row in own if row.get("solver") == "dopri5"]
        assert {row["metric"] for row in adaptive} == usual and all(row["nfe"] > 6 for row in adaptive)
        once = {row["metric"]: row["value"] for row in own if row["nfe"] is None}
        assert {"megabytes_up", "megabytes_down"} <= once.keys() and (once["silos"], once["flow_rounds"]) == (3, 2)
        assert all(np.isfinite(row["value"]) for row in own)


def test_methods_share_the_network_the_training_and_the_noise(everything):
    out, _ = everything
    configs = [study.config_of(cell(out, method)) for method in METHODS]
    assert len({config.images for config in configs}) == 1
    assert len({config.flow for config in configs}) == 1
    assert [config.coupling.name for config in configs] == [
        "independent",
        "minibatch",
        "potential",
        "balanced",
        "semidiscrete",
    ]


def test_a_cell_goes_on_with_its_run(everything):
    out, _ = everything
    folder = RunFolder(out / "digits" / "vanilla" / "seed-0" / study.RUN)
    before = (folder.path / "metrics.jsonl").read_bytes()
    study.run(cell(out, "vanilla"))
    assert (folder.path / "metrics.jsonl").read_bytes() == before  # nothing was trained again


def test_what_a_machine_needs_otherwise_may_be_set_and_a_finished_cell_stays_one(tmp_path):
    (usual,), (lighter,) = (
        cells_of(recipe("ffm-cifar10"), "smoke", tmp_path, 0, ["vanilla"], [], changes=changes)
        for changes in ([], ["flow.passes=2", "sampling.batch=100"])
    )
    options = lighter.cell.options
    assert options["flow"]["passes"] == 2 and options["sampling"] == {**usual.cell.options["sampling"], "batch": 100}
    assert study.config_of(lighter.cell).flow.passes == 2
    assert usual.record() == lighter.record() and "batch" not in usual.record()["options"]["sampling"]
    assert usual.record()["options"]["flow"]["batch"] == 32  # another batch, on which figures rest
    folder = RunFolder(usual.path)
    folder.path.mkdir(parents=True)
    old = {**usual.record(), "options": usual.cell.options}  # with all options, free ones too
    folder.write_json("results.json", {"rows": []})
    for record in (usual.record(), old):
        folder.write_json("config.json", record)
        assert lighter.finished()
    folder.write_json("config.json", {**old, "options": {**old["options"], "nfe": [7]}})
    with pytest.raises(RunFolderError, match="nfe"):
        lighter.finished()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("ffm-cifar10", "flow.rate=1", r"'flow.rate' is not for --set.*flow.passes, flow.compile, sampling.batch"),
        ("ffm-2d", "flow.passes=2", "Nothing can be set here"),
        ("ffm-cifar10", "flow.passes", "write key=value"),
        ("ffm-cifar10", "sampling.batch=0", "sampling.batch is 0; give a whole number, 1 or more"),
        ("ffm-cifar10", "inception.batch=2.5", "inception.batch is 2.5; give a whole number"),
        ("ffm-cifar10", "flow.passes=true", "flow.passes is True; give a whole number"),
    ],
)
def test_what_figures_rest_on_is_not_to_be_set(tmp_path, name, change, sentence):
    with pytest.raises(UsageError, match=sentence):
        cells_of(recipe(name), "smoke", tmp_path, 0, [], [], changes=[change])


def test_what_a_run_says_reaches_whoever_reproduces(tmp_path):
    with pytest.warns(
        UserWarning, match="digits vanilla seed 0: flow.precision is 'bfloat16', which this CPU does not"
    ):
        study.run(cell(tmp_path, "vanilla", flow={"precision": "bfloat16"}))


def test_a_silo_that_did_not_count_is_told_of(tmp_path):
    notes = _notes(cell(tmp_path, "lot"), SimpleNamespace(looks=Looks()))
    with pytest.warns(UserWarning, match="digits lot seed 0: silo 'b' did not count in a round. It sent no numbers."):
        notes.progress(SimpleNamespace(failures={"b": "It sent no numbers."}), None)
