"""A cell of the study is a run that goes on, and tells every figure."""

import numpy as np

from anabranch.recipes.studies import flow_images as study
from anabranch.runs import RunFolder
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
