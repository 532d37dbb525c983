"""The study of image flows: cells are runs that go on, and samples are compared with both splits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from anabranch.recipes import recipe, recipes
from anabranch.recipes._study import StudyCell, StudyRun
from anabranch.recipes.studies import _flow_images_pictures as pictures
from anabranch.recipes.studies import flow_images as study
from anabranch.runs import RunFolder, device_of, from_dict, images_of, merged

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
PAPERS = ["ffm-cifar10", "ffm-cifar10-32", "ffm-ablation"]
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


def cells_of(name: str) -> list[StudyCell]:
    """Every cell of every scale, and of every problem and method that a scale could be asked for."""
    found = recipe(name)
    return [
        StudyCell(problem, method, seed, scale, found.options(problem, method, scale), Path(), 1)
        for scale in found.values["scales"]
        for problem, method, seed in dict.fromkeys(
            [*found.cells(scale), *found.cells(scale, methods=found.methods, problems=found.problems)]
        )
    ]


@pytest.mark.parametrize("name", [*PAPERS, "ffm-fashion"])
def test_every_cell_of_every_scale_is_a_valid_config(name):
    for one in cells_of(name):
        config = study.config_of(one)
        assert from_dict(config.to_dict()) == config
        cifar = config.data.target == "cifar10"
        assert config.images.shape == ((3, 32, 32) if cifar else config.images.shape)
        assert config.federation.count <= (1 if config.data.pooled else config.data.silos)
        assert set(one.options) >= {"nfe", "real", "sampling", "inception"}
        assert one.options["sampling"].keys() == {"count", "batch", "solver"}


@pytest.mark.parametrize("name", PAPERS)
def test_methods_of_a_recipe_share_network_and_training(name):
    shared = {}
    for one in cells_of(name):
        config = study.config_of(one)
        potential = config.potential if config.coupling.name in ("potential", "entropic", "balanced") else None
        mine = (config.images, config.flow, config.federation, config.data.silos, config.data.alpha)
        others = shared.setdefault((one.scale, one.problem), (set(), set()))
        others[0].add(repr(mine))
        others[1].add(repr(potential)) if potential else None
    assert all(len(everything) == 1 and len(potentials) <= 1 for everything, potentials in shared.values())


def test_the_papers_scale_is_the_papers():
    def of(name, problem, method):
        found = recipe(name)
        return study.config_of(
            StudyCell(problem, method, 0, "paper", found.options(problem, method, "paper"), Path(), 1)
        )

    got = of("ffm-cifar10", "alpha-0.1", "got")
    assert (got.flow.rounds, got.flow.warm_up, got.flow.average, got.flow.rate) == (400_000, 5000, 0.9999, 2e-4)
    assert (got.flow.batch, got.data.silos, got.data.alpha, got.images.channels) == (128, 3, 0.1, 128)
    assert (got.coupling.name, got.coupling.transform, got.coupling.candidates) == ("potential", "descent", 128)
    assert (got.coupling.descent_steps, got.coupling.descent_rate, got.potential.rate) == (5, 0.5, 1e-4)
    pooled = of("ffm-cifar10", "alpha-0.3", "pooled")
    assert pooled.data.pooled and pooled.coupling.name == "minibatch"
    many = of("ffm-cifar10-32", "32-silos-alpha-0.5", "lot")
    assert (many.data.silos, many.data.alpha) == (32, 0.5)
    assert (many.federation.participation, many.federation.count) == ("random", 3)
    for method, steps, pool in [("got descent 20", 20, 128), ("got pool 512", 5, 512)]:
        found = of("ffm-ablation", method.split()[1], method)
        assert (found.coupling.name, found.coupling.transform) == ("potential", "descent")
        assert (found.coupling.descent_steps, found.coupling.candidates) == (steps, pool)
        assert found.flow.rounds == 200_000


@pytest.mark.parametrize(("name", "count"), [("ffm-cifar10", 87), ("ffm-cifar10-32", 30), ("ffm-ablation", 40)])
def test_published_figures_are_of_cells_that_exist(name, count):
    found = recipe(name)
    assert len(found.published) == count
    cells = {(problem, method) for problem, method, _ in found.cells("paper")}
    for row in found.published:
        assert (row["problem"], row["method"]) in cells and row["value"] > 0 and row["where"].startswith("Table ")
        once = row["metric"] == "flow_seconds"
        assert once == ("nfe" not in row)
        assert once or row["nfe"] in found.options(row["problem"], row["method"], "paper")["nfe"]
    keys = [(row["problem"], row["method"], row["metric"], row.get("nfe")) for row in found.published]
    assert len(set(keys)) == len(keys)


def test_checks_name_methods_and_steps_that_are_run():
    for name in PAPERS:
        found = recipe(name)
        for check in found.values["checks"]:
            right = check["right"] if isinstance(check["right"], list) else [check["right"]]
            for scale in check["scales"]:
                places = check.get("problems", found.scale(scale)["problems"])
                cells = {(problem, method) for problem, method, _ in found.cells(scale)}
                for problem in places:
                    assert {(problem, method) for method in [check["left"], *right]} <= cells
                    assert set(check["nfe"]) <= set(found.options(problem, check["left"], scale)["nfe"])


def test_no_two_recipes_publish_figures_of_one_problem():
    """Tables find the paper's figures by the problem's name."""
    owners = {}
    for found in recipes().values():
        if found.study == pictures.STUDY and found.published:
            for problem in found.problems:
                owners.setdefault(problem, set()).add(found.name)
    figures = {row["problem"] for row in pictures.published()}
    assert figures and all(len(owners[problem]) == 1 for problem in figures)


def test_tables_show_the_papers_figures_beside_ours():
    row = {"problem": "alpha-0.3", "seed": 0, "metric": "fid_test"}
    values = {("got", 2): 30.0, ("got", 3): 20.0, ("sd", 2): 25.0, ("sd", 3): 16.0}
    rows = [{**row, "method": method, "nfe": nfe, "value": value} for (method, nfe), value in values.items()]
    tables = dict(study.tables(rows))
    assert tables["alpha-0.3: FID, test images (paper: Table 1)"] == [
        ["method", "2 steps", "3 steps", "3 steps, paper"],
        ["got", "30", "20", "18.15"],
        ["sd", "25", "16", "–"],
    ]
    (title, training), (last, scores) = list(tables.items())[1:]
    assert title.startswith("alpha-0.3: training (paper: Table 5") and training[1][-2:] == ["–", "1.89e+05"]
    assert "not comparable" in last and scores[0][1] == "3 steps, paper" and scores[1][:2] == ["vanilla", "1.9"]


def test_where_the_papers_versions_differ_both_are_shown(monkeypatch):
    row = {"problem": "p", "method": "lot", "metric": "fid_test", "nfe": 4}
    theirs = [{**row, "value": 43.7, "where": "Table 2, earlier"}, {**row, "value": 41.0, "where": "Table 4"}]
    monkeypatch.setattr(pictures, "published", lambda: theirs)
    (title, lines), *_ = study.tables([{**row, "seed": 0, "value": 50.0}])
    assert title == "p: FID, test images (paper: Table 2, earlier; Table 4)"
    assert lines == [["method", "4 steps", "4 steps, paper"], ["lot", "50", "43.7 / 41"]]
