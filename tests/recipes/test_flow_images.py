"""The study of image flows: cells are runs that go on, and samples are compared with both splits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell, StudyRun
from anabranch.recipes.studies import flow_images as study
from anabranch.runs import RunFolder, device_of, images_of, merged

TINY = {
    "nfe": [1, 2],
    "flow": {"rounds": 2, "batch": 4, "warm_up": 0},
    "images": {"channels": 4},
    "data": {"images": 90},
    "semidiscrete": {"rounds": 2, "count": 16, "noises": 64, "block": 32},
    "potential": {"batch": 8},
    "coupling": {"candidates": 8},
    "sampling": {"count": 12, "batch": 5},
}
METHODS = ["vanilla", "lot", "got", "got-balanced", "sd"]


def cell(out: Path, method: str, **options) -> StudyCell:
    chosen = merged(recipe("ffm-fashion").options("digits", method, "smoke"), TINY, options)
    folder = out / "digits" / method / "seed-0"
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell("digits", method, 0, "smoke", chosen, folder, 1)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("flows")
    rows = []
    for method in METHODS:
        run = StudyRun("flow_images", cell(out, method))
        run.run()
        rows += run.rows()
    return out, rows


def test_every_method_has_every_figure(everything):
    _, rows = everything
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        for nfe in (1, 2):
            found = {row["metric"] for row in own if row["nfe"] == nfe}
            assert found == {"pixels_train", "pixels_test", "seconds_50k"}
        assert {"megabytes_up", "megabytes_down"} <= {row["metric"] for row in own if row["nfe"] is None}
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


def test_training_images_are_closer_to_themselves_than_to_test_images(everything):
    out, _ = everything
    one = cell(out, "vanilla")
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    data = images_of(config.data)
    found = eyes.compare(data.bytes.reshape(-1, *data.shape))
    assert found["pixels_train"] == pytest.approx(0, abs=1e-6) and found["pixels_test"] > 0.1


def test_samples_do_not_depend_on_how_many_are_drawn_at_once(everything):
    """Batches have their own noise, so it is the flow that must not mix rows."""
    out, _ = everything
    one = cell(out, "lot")
    config = study.config_of(one)
    velocity, device = study._velocity(one.folder / study.RUN, config)
    images = study.sampled(velocity, config, one, 2, device)
    assert images.shape == (12, 1, 8, 8) and images.dtype == torch.uint8
    first = study.sampled(velocity, config, cell(out, "lot", sampling={"count": 5}), 2, device)
    assert torch.equal(images[:5], first)


def test_a_cell_goes_on_with_its_run(everything):
    out, _ = everything
    folder = RunFolder(out / "digits" / "vanilla" / "seed-0" / study.RUN)
    before = (folder.path / "metrics.jsonl").read_bytes()
    study.run(cell(out, "vanilla"))
    assert (folder.path / "metrics.jsonl").read_bytes() == before  # nothing was trained again


def test_tables_and_pictures(everything, tmp_path):
    out, rows = everything
    tables = dict(study.tables(rows))
    assert [line[0] for line in tables["digits: distance of pixels, test images"]] == ["method", *METHODS]
    drawn = study.draw(rows, sorted(out.glob("*/*/seed-*")), tmp_path)
    assert {path.name for path in drawn.values()} == {"steps-digits.png", "samples-digits.png"}
    assert all(path.stat().st_size > 5000 for path in drawn.values())
