"""Samples are compared with both splits."""

import pytest
import torch

from anabranch.errors import CheckpointError, DataError, UsageError
from anabranch.metrics import ClassLayer
from anabranch.recipes import cells_of, recipe
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _eyes as eyes_module
from anabranch.runs import device_of, images_of, merged
from anabranch.seeds import generator
from tests.recipes.flow_images.cells import cell


def test_training_images_are_closer_to_themselves_than_to_test_images(everything):
    out, _ = everything
    one = cell(out, "vanilla")
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    data = images_of(config.data)
    rows = eyes.compare(eyes.features(data.bytes.reshape(-1, *data.shape)))
    found = {row["metric"]: row["value"] for row in rows}
    assert found["pixels_train"] == pytest.approx(0, abs=1e-6) and found["pixels_test"] > 0.1
    assert [(row["images"], row["real"]) for row in rows] == [(90, 90), (90, 359)]


@pytest.mark.parametrize("real", [0, 40])
def test_training_images_are_copies_and_test_images_are_not(everything, real):
    """All training images are looked at, also where distances are taken to fewer."""
    out, _ = everything
    one = cell(out, "vanilla", real=real)
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    images = images_of(config.data).bytes.reshape(-1, 1, 8, 8)
    copies = eyes.memorised(eyes.features(images))
    assert copies == {"metric": "memorised_pixels", "value": 1.0, "images": 90, "real": 90}
    fresh = eyes.memorised(eyes.features(255 - images))  # negatives are near nothing
    assert fresh["value"] == 0.0


@pytest.mark.parametrize(("flip", "share"), [("none", 0.0), ("random", 1.0), ("points", 1.0)])
def test_mirrored_copies_are_copies_where_a_run_mirrors(everything, flip, share):
    out, _ = everything
    one = cell(out, "vanilla", data={"flip": flip})
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    uneven = images_of(config.data).bytes.reshape(-1, 1, 8, 8)[:5]  # none of which is its own mirror image
    found = eyes.memorised(eyes.features(uneven.flip(-1)))
    assert found == {"metric": "memorised_pixels", "value": share, "images": 5, "real": 90}


def test_what_real_images_score_is_told_once_a_cell_and_printed(everything, inception, tmp_path):
    chosen = {"inception": {"use": True}, "data": {"images": 60}, "adaptive": False}
    with pytest.warns(UserWarning) as said:
        rows = study.run(cell(tmp_path, "vanilla", **chosen))
    few = ["FID of 12 samples", "FID against 60 images (train)", "FID against 359 images (test)"]
    told = [str(warning.message).partition(" is too large, by about")[0] for warning in said]
    assert [text for text in told if text.startswith("FID")] == few
    (sanity,) = (row for row in rows if row["metric"] == "fid_train_test")
    assert (sanity["nfe"], sanity["images"], sanity["real"]) == (None, 359, 60)
    (bias,) = (row for row in rows if row["metric"] == "fid_bias")
    assert (bias["nfe"], bias["images"], bias["real"]) == (None, 12, 60) and bias["value"] > 0
    assert {"fid_change", "fid_train", "fid_test"} <= {row["metric"] for row in rows}
    found = dict(study.tables(rows))
    assert found["digits: FID of real images"] == [
        ["FID of", "images", "training images", "FID"],
        ["test images against training images", "359", "60", f"{sanity['value']:.4g}"],
        ["samples of a perfect flow against training images, about", "12", "60", f"{bias['value']:.4g}"],
    ]
    assert not {"fid_train_test", "fid_bias"} & set(found["digits: training"][0])


def test_cells_of_one_process_share_their_eyes(inception, tmp_path):
    device = torch.device("cpu")

    def eyes(method, **options):
        one = cell(tmp_path, method, **merged({"inception": {"use": True}, "data": {"images": 60}}, options))
        return eyes_module.eyes_of(one.options, study.config_of(one), device)

    first = eyes("vanilla", data={"flip": "random"})
    assert eyes("sd", data={"flip": "points"}) is first  # the same images
    assert eyes("lot", data={"flip": "random", "alpha": 0.1, "silos": 2}) is first
    assert inception == [True]
    for other in ({"data": {"images": 50}}, {"data": {"flip": "none"}}, {"real": 40}, {"inception": {"tf32": False}}):
        assert eyes("vanilla", **merged({"data": {"flip": "random"}}, other)) is not first
    assert inception == [True, True, True, True, False]
    assert len(eyes_module._OPEN) == 1  # one at a time


@pytest.fixture
def layer(tmp_path):
    """A file with a layer of classes."""
    weight = torch.randn(1008, 2048, generator=generator(0, "weight"))
    torch.save({"fc.weight": weight}, tmp_path / "layer.pth")
    return tmp_path / "layer.pth"


def test_with_the_layer_of_classes_there_is_an_inception_score(inception, layer, tmp_path):
    chosen = {"inception": {"use": True, "classes": str(layer)}, "data": {"images": 60}, "nfe": [2]}
    one = cell(tmp_path, "vanilla", **chosen)
    with pytest.warns(UserWarning, match="FID of 12 samples"):
        rows = study.run(one)
    scores = [row for row in rows if row["metric"].startswith("inception_score")]
    assert [(row["metric"], row.get("solver"), row["images"]) for row in scores] == [
        (metric, solver, 12)
        for solver in (None, "dopri5")
        for metric in ("inception_score", "inception_score_deviation")
    ]
    config = study.config_of(one)
    velocity, device = study.velocity_of(one.folder / study.RUN, config)
    images = study.sampled(velocity, config, 0, one.options["sampling"], 2, device).images
    features = eyes_module.eyes_of(one.options, config, device).features(images)
    expected = ClassLayer.load(layer).score(features, generator(0, "inception score"))
    assert scores[0]["value"] == pytest.approx(expected.value) and expected.splits == 10
    table = dict(study.tables(rows))["digits: Inception Score"]
    assert table[0][:2] == ["method", "2 steps"] and table[1][1] == f"{expected.value:.4g}"


def test_a_score_that_cannot_be_is_refused_before_training(layer, tmp_path):
    with pytest.raises(UsageError, match="pixels are compared instead"):
        study.run(cell(tmp_path, "vanilla", inception={"classes": str(layer)}))
    wrong = {"use": True, "classes": str(tmp_path / "missing.pth")}
    with pytest.raises(CheckpointError, match="cannot be read"):
        study.run(cell(tmp_path, "lot", inception=wrong))
    assert not list(tmp_path.glob("digits/*/*/run"))


def test_inception_that_is_not_here_is_missed_before_training(monkeypatch, tmp_path):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match="Get them with 'anabranch data get inception'"):
        study.run(cell(tmp_path, "vanilla", inception={"use": True}))
    assert not list(tmp_path.glob("digits/*/*/run"))


def test_the_layer_of_classes_is_an_option_of_every_cell(layer, tmp_path):
    for one in cells_of(recipe("ffm-cifar10"), "small", tmp_path, 0, [], [], layer):
        assert one.cell.options["inception"] == {"use": True, "tf32": True, "batch": 250, "classes": str(layer)}
    with pytest.raises(UsageError, match="'dcfm-cmnist' has no Inception Score"):
        cells_of(recipe("dcfm-cmnist"), "small", tmp_path, 0, [], [], layer)
