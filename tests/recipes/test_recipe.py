"""Recipes give the cells that the paper describes."""

import pytest

from anabranch.errors import UsageError
from anabranch.recipes import Cell, Recipe, cells_of, recipe, recipes, reproduce, theory, theory_table
from anabranch.runs import from_dict


def test_ffm_2d_is_as_described():
    found = recipe("ffm-2d")
    assert found.problems == ["8gaussians-moons", "uniform-8gaussians"]
    assert " ".join(found.methods) == "vanilla lot got got-entropic got-balanced sd sd-protected icfm otcfm"
    assert len(found.cells("small")) == 2 * 9 * 2
    paper = found.config("uniform-8gaussians", "got", "paper", 0)
    assert (paper.flow.rounds, paper.flow.batch, paper.potential.every, paper.potential.rate) == (40000, 256, 5, 1e-4)
    assert paper.data.groups[0] == (3, 4, 5, 6)  # the modes at 135, 180, 225 and 270 degrees
    assert found.config("8gaussians-moons", "otcfm", "small", 0).data.pooled


def test_every_cell_of_every_scale_is_a_valid_config():
    for found in (found for found in recipes().values() if found.study is None):
        for scale in found.values["scales"]:
            for problem, method, seed in found.cells(scale):
                config = found.config(problem, method, scale, seed)
                assert from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recipe("ffm2d"), "did you mean 'ffm-2d'"),
        (lambda: recipe("ffm-2d").config("moons", "lot", "small", 0), "8gaussians-moons"),
        (lambda: recipe("ffm-2d").config("8gaussians-moons", "lott", "small", 0), "did you mean 'lot'"),
        (lambda: recipe("ffm-2d").cells("smal"), "did you mean 'small'"),
        (lambda: recipe("ffm-2d").cells("small", methods=["lott"]), "did you mean 'lot'"),
    ],
)
def test_unknown_names_are_suggested(call, words):
    with pytest.raises(UsageError) as error:
        call()
    assert words in str(error.value)


def with_seeds_of(**seeds_of):
    """A recipe of two methods, of which some have seeds of their own."""
    scale = {"seeds": [0], "seeds_of": seeds_of, "flow": {"rounds": 3}}
    values = {"base": {}, "problems": {"p": {}}, "methods": {"lot": {}, "sd": {}}, "scales": {"small": scale}}
    return Recipe("r", "", "", "", values)


def test_a_method_may_have_more_seeds_than_others():
    found = with_seeds_of(sd=[0, 1])
    assert found.cells("small") == [("p", "lot", 0), ("p", "sd", 0), ("p", "sd", 1)]
    assert found.cells("small", seed=7) == [("p", "lot", 7), ("p", "sd", 7)]
    assert found.cells("small", methods=["lot"]) == [("p", "lot", 0)]
    assert with_seeds_of(lot=[3]).cells("small") == [("p", "lot", 3), ("p", "sd", 0)]
    assert found.options("p", "sd", "small") == {"flow": {"rounds": 3}}  # seeds are no option
    assert found.config("p", "sd", "small", 1).flow.rounds == 3


def test_seeds_of_an_unknown_method_are_refused():
    with pytest.raises(UsageError, match="did you mean 'sd'"):
        with_seeds_of(ds=[0, 1]).cells("small")


def test_an_option_may_hold_for_one_method_in_one_problem():
    values = {
        "base": {"weight": 1, "kept": 0},
        "problems": {"p": {"weight": 2, "of": {"sd": {"weight": 4}}}, "q": {}},
        "methods": {"lot": {"weight": 3}, "sd": {"weight": 3}},
        "scales": {"small": {"seeds": [0]}, "smoke": {"seeds": [0], "weight": 5}},
    }
    found = Recipe("r", "", "", "", values)
    weights = {(p, m): found.options(p, m, "small")["weight"] for p in "pq" for m in ("lot", "sd")}
    assert weights == {("p", "lot"): 3, ("p", "sd"): 4, ("q", "lot"): 3, ("q", "sd"): 3}
    assert found.options("p", "sd", "smoke") == {"weight": 5, "kept": 0}  # a scale has the last word
    values["problems"]["p"]["of"]["ds"] = {"weight": 6}
    with pytest.raises(UsageError, match="did you mean 'sd'"):
        found.options("p", "lot", "small")


def test_reproduce_fills_gaps_and_merges(tmp_path):
    found, ran = recipe("ffm-2d"), []
    changes = ["flow.rounds=6", "flow.batch=8", "data.points=30", "evaluation.points=32", "run.threads=1"]

    def cells(*methods):
        return [
            Cell(found.config(problem, method, "smoke", 0, changes), tmp_path / problem / method)
            for problem in found.problems[:1]
            for method in methods
        ]

    def watch(every, running):
        ran.extend(cell.config.method for cell in running)

    first = reproduce(found, "smoke", cells("vanilla"), 1, watch)
    assert {row["method"] for row in first.rows} == {"vanilla", "theory"} and not first.failures
    both = reproduce(found, "smoke", cells("vanilla", "lot"), 1, watch)
    assert {row["method"] for row in both.rows} == {"vanilla", "lot", "theory"}
    kept = [row for row in both.rows if row["method"] == "vanilla"]
    assert kept == [row for row in first.rows if row["method"] == "vanilla"]  # times included: not run again
    for row in both.rows:
        assert {"problem", "method", "seed", "nfe", "metric", "value"} <= row.keys()


def test_a_failing_cell_does_not_stop_the_others(tmp_path):
    found = recipe("ffm-2d")
    good, bad = (
        Cell(found.config("8gaussians-moons", method, "smoke", 0, changes), tmp_path / method)
        for method, changes in (
            ("vanilla", ["flow.rounds=3", "data.points=30", "evaluation.points=32", "run.threads=1"]),
            ("sd", ["flow.rounds=3", "data.points=30", "privacy.lookup_limit=5", "run.threads=1"]),
        )
    )
    outcome = reproduce(found, "smoke", [good, bad], 2, lambda *_: None)
    assert list(outcome.failures) == [bad.name] and "at most 5 answers" in outcome.failures[bad.name]
    assert outcome.runs == [good.path] and not outcome.ok


def test_cells_of_name_their_folders(tmp_path):
    (cell,) = cells_of(recipe("ffm-2d"), "smoke", tmp_path, 3, ["lot"], ["8gaussians-moons"])
    assert cell.path == tmp_path / "8gaussians-moons" / "lot" / "seed-3" and cell.config.run.threads == 1


def test_theory_in_numbers():
    config = recipe("ffm-2d").config("8gaussians-moons", "lot", "smoke", 0)
    rows = theory(config, 100, [0.0, 0.5, 1.0])
    value = {(row["metric"], row.get("overlap")): row["value"] for row in rows}
    assert value["lemma2_ratio", None] < 1  # FFM, Lemma 2
    assert value["lemma2_left", 0.0] < 0.7 * value["lemma2_right", 0.0]  # disjoint silos: far from equality
    assert value["cost_ratio", 1.0] < 1.2 < 1.8 < value["cost_ratio", 0.0]
    lines = theory_table(rows)
    assert len(lines) == 4 and lines[1][:2] == ["8gaussians-moons", "0"] and theory_table([]) == []
    assert value["plan_distance", 1.0] < value["plan_distance", 0.5] < value["plan_distance", 0.0]
