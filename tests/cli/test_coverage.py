"""`anabranch coverage` as a person types it: tables, JSON, a picture, and sentences for mistakes."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from anabranch.cli._coverage import coverage

app = typer.Typer()
app.command()(coverage)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def found(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def write(path, wind, rain):
    np.savez(path, x=np.zeros((len(wind), 2)), wind=np.array(wind), rain=np.array(rain))
    return path


@pytest.fixture
def robots(tmp_path):
    """Two robots, one in rain only, one in wind only."""
    write(tmp_path / "north.npz", ["weak", "weak", "weak"], ["no", "yes", "yes"])
    write(tmp_path / "south.npz", ["strong", "weak"], ["no", "no"])
    return tmp_path


def test_two_files_are_two_silos_of_one_space(robots):
    record = found(robots / "north.npz", robots / "south.npz", "--attributes", "wind,rain")
    assert record["attributes"] == {"wind": ["strong", "weak"], "rain": ["no", "yes"]}
    assert record["coverage"] == record["minimum"] == 0.75 and record["feasible"] and record["problems"] == []
    assert record["novel"] == ["wind=strong, rain=yes"] and record["determined"] == 4
    assert record["marginal"] == {"wind": 1.0, "rain": 1.0}
    assert record["silos"]["north"] == {
        "samples": 3,
        "combinations": 2,
        "counts": {"wind=weak, rain=no": 1, "wind=weak, rain=yes": 2},
    }


def test_some_combinations_of_files_are_kept(robots):
    record = found(robots / "north.npz", robots / "south.npz", "--observed", "all-but-one")
    assert record["observed"] == 2 and record["silos"]["north"]["counts"] == {"wind=weak, rain=no": 1}


def test_the_tables_say_who_has_seen_what_and_that_nothing_was_sent(robots):
    shown = run(robots / "north.npz", robots / "south.npz")
    assert shown.exit_code == 0, shown.output
    for text in ("2 (2)", "novel", "0.75", "3 of 4", "nothing was sent", "north", "Every combination follows"):
        assert text in shown.stdout


def test_what_is_missing_is_said(robots):
    gap = write(robots / "gap.npz", ["weak", "strong"], ["no", "yes"])
    shown = run(gap)
    assert shown.exit_code == 0
    said = " ".join(shown.output.split())
    assert "3 combinations are needed, 2 are observed" in said and "2 groups" in said
    record = found(gap)
    assert not record["feasible"] and len(record["problems"]) == 3


def test_numbers_stand_to_the_right_and_names_to_the_left(robots):
    shown = run(robots / "north.npz", robots / "south.npz").stdout
    assert "│ north │       3 │       2 of 4 │" in shown and "│ wind \\ rain │" not in shown.splitlines()[-1]
    assert "│ strong      │ 1 (1) │ novel │" in shown and "│ weak        │ 2 (2) │ 2 (1) │" in shown


def test_outcomes_that_differ_only_in_case_are_pointed_out(robots):
    write(robots / "south.npz", ["Weak", "weak"], ["no", "no"])
    for more in ((), ("--json",)):
        result = run(robots / "north.npz", robots / "south.npz", *more)
        assert "wind has 'Weak' and 'weak', which differ only in case" in " ".join(result.stderr.split())
        assert "differ only" not in result.stdout
    write(robots / "south.npz", ["strong", "weak"], ["no", "no"])
    assert "differ only" not in run(robots / "north.npz", robots / "south.npz").output


def test_a_partition_is_tried_and_drawn(tmp_path):
    out = tmp_path / "pictures" / "coverage.png"
    words = (
        "--data",
        "colored-digits",
        "--silos",
        10,
        "--partition",
        "dirichlet",
        "--alpha",
        0.1,
        "--observed",
        "band",
    )
    record = found(*words, "--out", out)
    assert record["coverage"] == 0.5 and record["needed"] == 19 and len(record["novel"]) == 50
    assert len(record["silos"]) == 10 and sum(silo["samples"] for silo in record["silos"].values()) == 1438
    assert min(silo["combinations"] for silo in record["silos"].values()) < 25
    assert out.read_bytes().startswith(b"\x89PNG")
    assert found(*words) == record and found(*words, "--seed", 1) != record


def test_more_attributes_and_large_spaces_are_shown_too(tmp_path):
    random = np.random.default_rng(0)
    names = {"a": 3, "b": 2, "c": 4}
    columns = {name: random.integers(size, size=200) for name, size in names.items()}
    np.savez(tmp_path / "three.npz", x=np.zeros((200, 1)), **columns)
    shown = run(tmp_path / "three.npz", "--silos", 3, "--out", tmp_path / "three.png")
    assert shown.exit_code == 0 and "a=2, b=1, c=3" in shown.stdout and (tmp_path / "three.png").exists()
    columns = {name: random.integers(50, size=400) for name in "ab"}
    np.savez(tmp_path / "large.npz", x=np.zeros((400, 1)), **columns)
    shown = run(tmp_path / "large.npz", "--silos", 15, "--out", tmp_path / "large.png")
    assert shown.exit_code == 0 and "too many to list" in " ".join(shown.stdout.split()), shown.output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "Give files"),
        (("north.npz", "--data", "corners"), 2, "one of both"),
        (("north.npz", "south.npz", "--silos", 3), 2, "silos already"),
        (("north.npz", "north.npz"), 2, "the same name"),
        (("north.npz", "--attributes", "wind"), 1, "nothing to compose"),
        (("north.npz", "--attributes", "wind,hail"), 1, "no array 'hail'"),
        (("north.npz",), 1, "one outcome"),
        (("gone.npz",), 1, "cannot be read"),
        (("--data", "corner"), 2, "did you mean 'corners'"),
        (("--data", "corners", "--observed", "bnad"), 2, "did you mean 'band'"),
        (("--data", "corners", "--silos", 2, "--partition", "iidd"), 2, "did you mean 'iid'"),
        (("--data", "corners", "--silos", 2, "--partition", "dirichlet", "--alpha", -1), 2, "must be positive"),
        (("--data", "corners", "--out", "picture.pdf"), 2, "end in .png"),
    ],
)
def test_mistakes_get_a_sentence(robots, words, code, says):
    result = run(*(robots / word if str(word).endswith(".npz") else word for word in words))
    assert result.exit_code == code and says in " ".join(result.output.split()), result.output


IDLE = [
    ("--attributes", "wind,rain", "attributes"),
    ("--count", 30, "points"),
    ("--observed", "band", "observed"),
    ("--silos", 4, "silos"),
    ("--partition", "iid", "partition"),
    ("--alpha", 0.1, "alpha"),
    ("--seed", 0, "seed"),
]


@pytest.mark.parametrize(("option", "value", "key"), IDLE)
def test_options_that_a_run_file_decides_itself_are_refused(tmp_path, option, value, key):
    """Also at their defaults: who types one means something by it."""
    (tmp_path / "mine.toml").write_text('method = "ddm"\n[data]\ntarget = "corners"\npartition = "iid"\nsilos = 2\n')
    assert len(found(tmp_path / "mine.toml")["silos"]) == 2
    result = run(tmp_path / "mine.toml", option, value)
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and f"{option} is for archives and --data" in said and f"data.{key} there" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--data", "corners", "--attributes", "horizontal,vertical"), "--attributes names arrays of files"),
        (("north.npz", "south.npz", "--count", 3), "--count is how many samples --data draws"),
        (("north.npz", "south.npz", "--partition", "dirichlet"), "--partition is about dividing one file"),
        (("north.npz", "south.npz", "--seed", 3), "--seed is about dividing one file"),
        (("--data", "corners", "--alpha", 3), "--alpha is about dividing one file"),
        (("--data", "corners", "--silos", 2, "--alpha", 3), "--alpha is of --partition dirichlet"),
    ],
)
def test_options_that_would_change_nothing_are_refused(robots, words, says):
    result = run(*(robots / word if str(word).endswith(".npz") else word for word in words))
    assert result.exit_code == 2 and says in " ".join(result.output.split()), result.output
