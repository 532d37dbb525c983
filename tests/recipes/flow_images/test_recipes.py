"""The recipes of the study: cells, settings, and the paper's figures."""

from pathlib import Path

import pytest

from anabranch.recipes import recipe, recipes
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _tables as tables
from anabranch.runs import from_dict
from tests.recipes.flow_images.cells import PAPERS, cells_of


@pytest.mark.parametrize("name", [*PAPERS, "ffm-fashion", "ffm-cifar10-alone"])
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
        if one.method.startswith("got batch") and one.scale != "smoke":  # their batch is what is compared
            for section in ("flow", "potential"):
                one.options[section]["batch"] = 128
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
    assert (many.data.silos, many.data.alpha, many.flow.batch) == (32, 0.5, 128)
    assert (many.federation.participation, many.federation.count) == ("random", 3)
    for method, steps, pool in [("got descent 20", 20, 128), ("got pool 512", 5, 512)]:
        found = of("ffm-ablation", method.split()[1], method)
        assert (found.coupling.name, found.coupling.transform) == ("potential", "descent")
        assert (found.coupling.descent_steps, found.coupling.candidates) == (steps, pool)
        assert found.flow.rounds == 200_000
    for batch in (32, 64, 128, 256):
        found = of("ffm-ablation", "batch", f"got batch {batch}")
        assert (found.flow.batch, found.potential.batch, found.coupling.candidates) == (batch,) * 3


@pytest.mark.parametrize(("name", "count"), [("ffm-cifar10", 91), ("ffm-cifar10-32", 30), ("ffm-ablation", 40)])
def test_published_figures_are_of_cells_that_exist(name, count):
    found = recipe(name)
    assert len(found.published) == count
    cells = {(problem, method) for problem, method, _ in found.cells("paper")}
    for row in found.published:
        assert (row["problem"], row["method"]) in cells and row["value"] > 0 and row["where"].startswith("Table ")
        once = row["metric"] == "flow_seconds" or row.get("solver") == "dopri5"
        assert once == ("nfe" not in row)
        assert once or row["nfe"] in found.options(row["problem"], row["method"], "paper")["nfe"]
    keys = [
        (row["problem"], row["method"], row["metric"], row.get("nfe"), row.get("solver")) for row in found.published
    ]
    assert len(set(keys)) == len(keys)


def test_checks_name_methods_and_steps_that_are_run():
    for name in PAPERS:
        found = recipe(name)
        for check in (part for entry in found.values["checks"] for part in parts_of(entry)):
            right = check.get("right", [])
            right = right if isinstance(right, list) else [right]
            for scale in check["scales"]:
                places = check.get("problems", found.scale(scale)["problems"])
                cells = {(problem, method) for problem, method, _ in found.cells(scale)}
                for problem in places:
                    assert {(problem, method) for method in [check["left"], *right]} <= cells
                    run = found.options(problem, check["left"], scale)["nfe"]
                    assert set(check["nfe"]) <= ({max(run)} if check["metric"] == "memorised" else set(run))
                    if check["metric"] == "fid_change":
                        assert check["nfe"] == [found.options(problem, check["left"], scale)["precise"]["nfe"]]


def parts_of(check):
    """A check with several methods and parts, as one for each of both."""
    lefts = check["left"] if isinstance(check["left"], list) else [check["left"]]
    return [{**check, **part, "left": left} for left in lefts for part in check.get("parts", [{}])]


def test_no_two_recipes_publish_figures_of_one_problem():
    """Tables find the paper's figures by the problem's name."""
    owners = {}
    for found in recipes().values():
        if found.study == tables.STUDY and found.published:
            for problem in found.problems:
                owners.setdefault(problem, set()).add(found.name)
    figures = {row["problem"] for row in tables.published()}
    assert figures and all(len(owners[problem]) == 1 for problem in figures)


def test_dopri5_is_for_table_7_and_not_at_small():
    found = recipe("ffm-cifar10")
    for scale, expected in (
        ("smoke", {"vanilla", "lot", "got"}),
        ("small", set()),
        ("paper", {"vanilla", "lot", "got", "pooled"}),
    ):
        places = found.cells(scale)
        assert {m for p, m, _ in places if found.options(p, m, scale).get("adaptive", False)} == expected
    printed = {row["method"] for row in found.published if row.get("solver") == "dopri5"}
    assert printed == {"vanilla", "lot", "got", "pooled"}


@pytest.mark.parametrize("name", [*PAPERS, "ffm-fashion", "ffm-imagenet64"])
def test_on_a_gpu_checkpoints_go_by_the_clock(name):
    for one in cells_of(name):
        config = study.config_of(one)
        by_the_clock = config.run.checkpoint_every > config.flow.rounds and config.run.checkpoint_minutes > 0
        assert by_the_clock == (one.scale != "smoke")


def test_local_ot_and_sd_have_two_seeds_at_small():
    cells = recipe("ffm-cifar10").cells("small")
    assert {method for _, method, seed in cells if seed == 1} == {"lot", "sd"}
    assert {method for _, method, seed in cells if seed == 0} == set(recipe("ffm-cifar10").methods)
