"""Checks compute what they say, fail when they should, and never pass for lack of rows."""

import math

import pytest

from anabranch.errors import UsageError
from anabranch.recipes import recipe, run_checks


def row(method, value, nfe=1, metric="w2", problem="p", seed=0, **more):
    return {"problem": problem, "method": method, "seed": seed, "nfe": nfe, "metric": metric, "value": value, **more}


def only(entry, rows, scale="small"):
    (check,) = run_checks([{"name": "c", **entry}], rows, scale)
    return check


def test_a_ratio_is_the_worst_over_problems_of_means_over_seeds():
    rows = [row("a", 1.0), row("a", 3.0, seed=1), row("b", 4.0), row("a", 3.0, problem="q"), row("b", 4.0, problem="q")]
    check = only({"kind": "ratio", "left": "a", "right": "b", "nfe": [1], "limit": 0.7}, rows)
    assert check.value == pytest.approx(0.75) and not check.ok


def test_a_ratio_to_several_takes_the_best_of_them():
    rows = [row("a", 1.0), row("b", 4.0), row("c", 2.0)]
    assert only({"kind": "ratio", "left": "a", "right": ["b", "c"], "nfe": [1], "limit": 0.5}, rows).value == 0.5


@pytest.mark.parametrize(
    ("few", "many"), [((0.9, 1.3), (0.9, 1.0)), ((1.2, 0.9), (0.9, 1.0)), ((0.9, 0.8), (1.0, 1.2))]
)
def test_one_of_several_must_do_all(few, many):
    """Two that do one thing each are not one that does both."""
    rows = [row("a", few[0], 3), row("b", few[1], 3), row("a", many[0], 50), row("b", many[1], 50)]
    rows += [row("got", 1.0, 3), row("lot", 0.9, 50)]
    parts = [{"right": "lot", "nfe": [50], "limit": 1.1}, {"right": "got", "nfe": [3], "limit": 1.0}]
    entry = {"kind": "ratio", "left": ["a", "b"], "parts": parts}
    check = only(entry, rows)
    wanted = min(max(many[i] / 0.9 / 1.1, few[i]) for i in (0, 1))
    assert check.value == pytest.approx(wanted) and check.limit == 1 and check.ok == (wanted <= 1)
    missing = only(entry, [*(r for r in rows if r["nfe"] == 3), row("lot", 1.0, 7)])
    assert missing.value == math.inf and not missing.ok
    assert run_checks([{"name": "c", **entry}], [r for r in rows if r["method"] != "b"], "small") == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [("ratio", 0.5), ("relative", 0.5), ("absolute", 2.0), ("difference", -2.0), ("wins", 1.0)],
    ids=lambda x: str(x),
)
def test_kinds(kind, value):
    entry = {"kind": kind, "left": "a", "right": "b", "nfe": [1]}
    entry |= {"at_least": 1} if kind == "wins" else {"limit": 10.0}
    check = only(entry, [row("a", 2.0), row("b", 4.0)])
    assert check.value == pytest.approx(value) and check.ok


def test_value_and_excess():
    rows = [row("a", 0.3, None, "use"), row("a", 0.2, None, "floor")]
    assert only({"kind": "value", "metric": "use", "left": "a", "limit": 0.2}, rows).ok is False
    excess = only({"kind": "excess", "metric": "use", "over": "floor", "left": "a", "limit": 0.2}, rows)
    assert excess.value == pytest.approx(0.1) and excess.ok


def test_wins_are_counted_over_cells():
    rows = [row("a", 1.0), row("b", 2.0), row("a", 3.0, 2), row("b", 2.0, 2)]
    check = only({"kind": "wins", "left": "a", "right": "b", "nfe": [1, 2], "at_least": 2}, rows)
    assert check.value == 1 and not check.ok


def test_a_check_without_its_rows_fails():
    check = only({"kind": "value", "metric": "gap", "left": "a", "limit": 1.0}, [row("a", 1.0)])
    assert check.value is None and not check.ok


def test_a_check_whose_methods_were_not_selected_is_left_out():
    assert (
        run_checks([{"name": "c", "kind": "ratio", "left": "a", "right": "b", "limit": 1}], [row("a", 1.0)], "small")
        == []
    )


def test_other_solvers_and_bytes_per_silo_do_not_enter():
    rows = [row("a", 1.0), row("a", 9.0, solver="dopri5"), row("a", 7.0, silo="s"), row("b", 1.0)]
    assert only({"kind": "ratio", "left": "a", "right": "b", "nfe": [1], "limit": 1.0}, rows).ok


def test_not_a_number_fails():
    rows = [row("a", math.nan), row("b", 1.0)]
    assert not only({"kind": "ratio", "left": "a", "right": "b", "nfe": [1], "limit": 1.0}, rows).ok


def test_a_check_without_a_limit_is_an_error():
    with pytest.raises(UsageError, match="neither a limit"):
        only({"kind": "value", "left": "a", "nfe": [1]}, [row("a", 1.0)])


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_every_scale_of_every_recipe_has_a_check_that_can_fail(scale):
    checks = [c for c in recipe("ffm-2d").values["checks"] if scale in c.get("scales", [scale])]
    assert checks and all("limit" in c or "at_least" in c for c in checks)


def test_a_ratio_that_must_be_reached_is_the_least_over_problems_and_fails_beside_nothing():
    rows = [row("a", 3.0), row("b", 4.0), row("a", 2.0, problem="q"), row("b", 4.0, problem="q")]
    entry = {"kind": "ratio", "left": "a", "right": "b", "nfe": [1], "at_least": 0.6}
    check = only(entry, rows)
    assert check.value == 0.5 and not check.ok
    assert only({**entry, "problems": ["p"]}, rows).ok
    beside_nothing = only({**entry, "nfe": [2]}, [row("a", 1.0, nfe=2), row("b", 1.0)])
    assert not beside_nothing.ok


def test_a_comparison_takes_the_seeds_that_both_sides_have():
    rows = [row("a", 1.0), row("a", 5.0, seed=1), row("b", 2.0), row("b", 3.0, seed=1), row("c", 4.0)]
    entry = {"kind": "ratio", "left": "a", "nfe": [1], "limit": 9.0}
    assert only({**entry, "right": "b"}, rows).value == pytest.approx(6 / 5)  # both seeds
    assert only({**entry, "right": "c"}, rows).value == pytest.approx(1 / 4)  # c has seed 0 alone
    assert only({**entry, "right": ["b", "c"]}, rows).value == pytest.approx(6 / 5)  # each beside its own seeds
    assert only({"kind": "value", "left": "a", "nfe": [1], "limit": 9.0}, rows).value == 3.0


def test_sides_without_a_common_seed_cannot_be_compared():
    rows = [row("a", 1.0, seed=1), row("b", 2.0, seed=0)]
    for ends in ({"limit": 1.0}, {"at_least": 0.1}):
        assert not only({"kind": "ratio", "left": "a", "right": "b", "nfe": [1], **ends}, rows).ok


def test_what_needed_no_seed_stands_beside_every_seed():
    rows = [row("a", 1.0), row("a", 3.0, seed=1), row("theory", 4.0, seed=None)]
    assert only({"kind": "ratio", "left": "a", "right": "theory", "nfe": [1], "limit": 1.0}, rows).value == 0.5


@pytest.mark.parametrize("ends", [{"limit": 2.0}, {"at_least": 0.1}], ids=["limit", "at_least"])
def test_no_check_passes_beside_missing_rows(ends):
    rows = [row(method, 1.0, nfe) for method in ("a", "b", "c") for nfe in (1, 2)]
    entry = {"kind": "ratio", "left": "a", "right": ["b", "c"], "nfe": [1, 2], **ends}
    assert only(entry, rows).ok
    for gone in ({"method": "a", "nfe": 2}, {"method": "c", "nfe": 2}, {"method": "b", "nfe": 1}):
        left = [found for found in rows if any(found[key] != value for key, value in gone.items())]
        assert not only(entry, left).ok


def test_a_problem_that_a_check_names_must_have_its_rows():
    rows = [row("a", 1.0), row("a", 1.0, metric="other", problem="q")]
    entry = {"kind": "value", "left": "a", "nfe": [1], "limit": 2.0}
    assert only(entry, rows).ok  # "q" does not have this metric, and nobody said that it should
    assert not only({**entry, "problems": ["p", "q"]}, rows).ok
    assert only({**entry, "problems": ["p", "r"]}, rows).ok  # "r" was not selected
