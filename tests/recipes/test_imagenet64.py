"""The recipe of ImageNet-64: its cells, and the paper's figures."""

from pathlib import Path

import pytest

from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import flow_images as study
from anabranch.runs import from_dict

RECIPE = recipe("ffm-imagenet64")


def config(problem, method, scale):
    return study.config_of(StudyCell(problem, method, 0, scale, RECIPE.options(problem, method, scale), Path(), 1))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_valid_and_share_network_and_training(scale):
    shared = {}
    for problem, method, _ in [*RECIPE.cells(scale), *RECIPE.cells(scale, problems=RECIPE.problems)]:
        found = config(problem, method, scale)
        assert from_dict(found.to_dict()) == found
        assert set(RECIPE.options(problem, method, scale)) >= {"nfe", "real", "sampling", "inception"}
        shared.setdefault(problem, set()).add(repr((found.images, found.flow, found.data.silos, found.data.alpha)))
    assert all(len(one) == 1 for one in shared.values())


def test_the_papers_scale_is_the_papers():
    got = config("imagenet64-500", "got", "paper")
    assert (got.flow.rounds, got.flow.batch, got.flow.rate, got.flow.average) == (200_000, 32, 2e-4, 0.999)
    assert (got.data.target, got.data.silos, got.data.alpha, got.data.crop) == ("imagenet64-500", 4, 0.3, 0.08)
    assert (got.coupling.transform, got.coupling.descent_steps, got.coupling.candidates) == ("descent", 5, 32)
    assert (got.potential.network, got.potential.rate) == ("cnn-potential", 1e-4)
    network = (got.images.shape, got.images.channels, got.images.multipliers, got.images.blocks, got.images.attention)
    assert network == ((3, 64, 64), 128, (1, 2, 2, 2, 2), 2, (16, 8))  # 46 972 419 parameters
    assert config("imagenet64-10", "lot", "paper").data.images == 9346
    assert config("imagenet64-500", "pooled", "paper").data.pooled


def test_only_methods_on_whole_images_are_not_cropped():
    crops = {method: config("imagenet64-500", method, "small").data.crop for method in RECIPE.methods}
    assert {method for method, crop in crops.items() if crop == 1} == {"lot-whole", "sd"}


def test_published_figures_are_of_cells_and_steps_that_exist():
    cells = {(problem, method) for problem, method, _ in RECIPE.cells("paper")}
    keys = []
    for row in RECIPE.published:
        assert (row["problem"], row["method"]) in cells and row["where"].startswith("Table ")
        steps = RECIPE.options(row["problem"], row["method"], "paper")["nfe"]
        assert (row["metric"] == "flow_seconds") == ("nfe" not in row) and ("nfe" not in row or row["nfe"] in steps)
        keys.append((row["problem"], row["method"], row["metric"], row.get("nfe")))
    assert len(set(keys)) == len(keys) == 20 + 3 + 3 + 4 + 15


def test_both_versions_of_the_paper_stand_beside_ours():
    values = {("lot", 4): 50.0, ("lot", 30): 20.0, ("sd", 4): 40.0, ("sd", 30): 18.0}
    row = {"problem": "imagenet64-500", "seed": 0, "metric": "fid_train"}
    rows = [{**row, "method": method, "nfe": nfe, "value": value} for (method, nfe), value in values.items()]
    title, lines = study.tables(rows)[0]
    assert title.endswith("(paper: Table 4; Table 2 of the earlier version)")
    assert lines == [
        ["method", "4 steps", "4 steps, paper", "30 steps", "30 steps, paper"],
        ["lot", "50", "43.7", "20", "15.9"],
        ["sd", "40", "–", "18", "–"],
    ]


def test_checks_compare_like_with_like():
    for check in RECIPE.values["checks"]:
        for scale in check["scales"]:
            for problem in RECIPE.scale(scale)["problems"]:
                left, right = (config(problem, check[side], scale) for side in ("left", "right"))
                assert left.data == right.data
                assert set(check["nfe"]) <= set(RECIPE.options(problem, check["left"], scale)["nfe"])
