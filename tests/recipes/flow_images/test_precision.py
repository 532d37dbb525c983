"""The same samples in 32 bits."""

import pytest

from anabranch.errors import UsageError
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _precision as precision
from anabranch.runs import device_of
from tests.recipes.flow_images.cells import METHODS, cell


def test_samples_in_32_bits_are_of_the_same_flow_and_noise(everything, monkeypatch):
    """On a CPU all is in 32 bits, so nothing changes; a flow that was rounded changes, by what the row says."""
    out, rows = everything
    assert [row["value"] for row in rows if row["metric"] == "pixels_change"] == [0.0] * len(METHODS)
    one = cell(out, "lot")
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    velocity, device = study.velocity_of(one.folder / study.RUN, config)

    def rounded(x, t):
        return velocity(x.bfloat16().float(), t).bfloat16().float()

    drawn = study.sampled(rounded, config, 0, one.options["sampling"], 2, device)
    plans = []
    monkeypatch.setattr(precision, "sampled", lambda *given: plans.append(given[3]) or study.sampled(*given))
    found = precision.beside_precise(one, config, one.folder / study.RUN, eyes, eyes.features(drawn.images))
    assert [plan["count"] for plan in plans] == [10]  # a GPU's noise depends on how much is drawn: two whole batches
    value = {row["metric"]: row["value"] for row in found}
    expected = {row["metric"]: row["value"] for row in eyes.compare(eyes.features(drawn.images[:7]))}
    changes = []
    for metric in ("pixels_train", "pixels_test"):
        assert value[f"rounded_{metric}"] == expected[metric]
        changes.append(abs(value[f"rounded_{metric}"] - value[f"precise_{metric}"]))
    assert value["pixels_change"] == max(changes) > 0
    assert {row["images"] for row in found} == {7}


@pytest.mark.parametrize("precise", [{"nfe": 3, "count": 4}, {"nfe": 2}])
def test_32_bits_beside_nothing_are_refused(tmp_path, precise):
    chosen = cell(tmp_path, "vanilla")
    chosen.options["precise"] = precise
    with pytest.raises(UsageError, match="one of the recipe's own"):
        study.run(chosen)


def test_what_rounding_does_is_a_table():
    row = {"problem": "p", "method": "vanilla", "seed": 0, "nfe": 10, "images": 500}
    values = {"rounded_fid_test": 20.0, "precise_fid_test": 19.9, "fid_change": 0.1}
    found = dict(study.tables([{**row, "metric": metric, "value": value} for metric, value in values.items()]))
    assert found["p: what rounding does, 10 steps, 500 samples"] == [
        ["method", "FID, test images", "FID, test images, 32 bits", "largest change"],
        ["vanilla", "20", "19.9", "0.1"],
    ]
