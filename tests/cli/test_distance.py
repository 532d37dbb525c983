"""Distances, clusters and coresets as a person types them: figures, files, pictures, and sentences for mistakes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import load_points

SHIFT = np.array([3.0, 4.0])  # of length 5


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def found(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def shifted(tmp_path):
    """Two files with the same points, one of them moved by 5."""
    points = np.random.default_rng(0).normal(size=(80, 2))
    for name, x in (("a", points), ("b", points + SHIFT)):
        np.savez(tmp_path / f"{name}.npz", x=x, label=np.repeat([0, 1], 40))
    np.save(tmp_path / "bare.npy", points)
    return tmp_path


@pytest.fixture
def clinics(tmp_path):
    """One table of six clinics of two kinds."""
    random = np.random.default_rng(0)
    lines = ["clinic,age,smoker"]
    for name, age in (("n1", 30), ("n2", 30), ("n3", 30), ("s1", 70), ("s2", 70), ("s3", 70)):
        lines += [f"{name},{random.normal(age, 5):.1f},{random.choice(['yes', 'no'])}" for _ in range(40)]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    for name in ("n1", "s1"):
        rows = [line.split(",", 1)[1] for line in lines if line.startswith((name, "clinic"))]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_a_distance_lies_between_its_bounds_and_is_compared_with_the_exact_one(shifted):
    out = shifted / "out"
    record = found("distance", shifted / "a.npz", shifted / "b.npz", "--rounds", 8, "--compare", "--out", out)
    assert record["exact"] == pytest.approx(5, abs=1e-5)
    assert record["lower"] - 1e-5 <= 5 <= record["value"] + 1e-5
    assert record["debiased"] == pytest.approx(5, rel=0.05) and record["support"] == 20
    assert record["errors"]["value"] == pytest.approx(record["value"] / 5 - 1, abs=1e-5)
    assert len(record["values"]) == 9 and record["values"][0] > record["values"][-1] == record["value"]
    assert all(silo["sent_bytes"] > 20 * 2 * 4 * 8 for silo in record["silos"].values())
    assert json.loads((out / "distance.json").read_text()) == record
    assert (out / "distance.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {"distance.json", "distance.png"}


def test_a_table_says_the_figures_and_repeats_with_the_seed(shifted, monkeypatch):
    monkeypatch.chdir(shifted)
    words = ["distance", "a.npz", "b.npz", "--rounds", 3]
    first, again, other = run(*words), run(*words), run(*words, "--seed", 1)
    assert first.exit_code == 0 and "best guess" in first.stdout and "80 × 2 numbers" in first.stdout
    assert first.stdout == again.stdout != other.stdout
    assert "exact" not in first.stdout and (shifted / "runs/distance-a-b/distance.png").exists()


def test_an_exact_measure_finds_the_exact_distance_once_silos_agree_to_show_their_points(shifted):
    words = ["distance", shifted / "a.npz", shifted / "b.npz", "--exact", "--limit", 24, "--out", shifted / "out"]
    assert "--points-per-atom 1" in run(*words).output
    record = found(*words, "--points-per-atom", 1, "--rounds", 10, "--compare")
    assert record["value"] == pytest.approx(record["exact"], rel=1e-3)
    assert all(silo["points"] == 24 for silo in record["silos"].values())


def test_classes_add_their_means_to_a_distance(shifted):
    words = [shifted / "a.npz", shifted / "b.npz", "--compare", "--rounds", 4, "--out", shifted / "out"]
    record = found("distance", *words, "--view", "classes")
    assert record["exact"] == pytest.approx(5 * 2**0.5, abs=1e-4)  # points and classes' means move by 5, spreads do not
    assert record["value"] >= record["exact"] - 1e-4


def test_tables_are_standardised_together_and_may_name_their_classes(clinics):
    words = ["distance", clinics / "n1.csv", clinics / "s1.csv", "--rounds", 3, "--out", clinics / "out"]
    record = found(*words, "--compare")
    assert 1.5 < record["exact"] < 2.5  # ages 30 and 70: two deviations of all ages together
    labelled = found(*words, "--label", "smoker", "--view", "classes")
    assert {silo["dimension"] for silo in labelled["silos"].values()} == {1}


@pytest.mark.parametrize("graph", ["affinity", "3"])
def test_silos_of_one_kind_are_grouped(clinics, graph):
    pytest.importorskip("sklearn")
    words = ["--data", clinics / "all.csv", "--by", "clinic", "--clusters", 2, "--rounds", 3, "--graph", graph]
    record = found("cluster", *words, "--out", clinics / "out")
    assert record["groups"] == [["n1", "n2", "n3"], ["s1", "s2", "s3"]] and record["labels"] == [0, 0, 0, 1, 1, 1]
    matrix = np.array(record["matrix"])
    assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()
    assert matrix[:3, 3:].min() > 2 * matrix[:3, :3].max()
    assert {path.name for path in (clinics / "out").iterdir()} == {"cluster.json", "cluster.png"}


def test_images_and_rows_of_as_many_numbers_have_a_distance(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    np.savez(tmp_path / "wide.npz", images=images.reshape(40, 4, 16))
    np.savez(tmp_path / "rows.npz", x=images.reshape(40, 64) / 127.5 - 1)
    for other in ("wide", "rows"):
        record = found("distance", tmp_path / "images.npz", tmp_path / f"{other}.npz", "--compare")
        assert record["exact"] < 1e-3  # the same numbers


def test_the_labels_of_an_image_set_divide_it(tmp_path):
    pytest.importorskip("sklearn")
    words = ["--data", "digits:test", "--by", "label", "--limit", 16, "--rounds", 1, "--clusters", 2]
    record = found("cluster", *words, "--out", tmp_path)
    assert record["names"] == list("0123456789") and record["support"] == 4


def test_a_coreset_stands_for_all_silos(tmp_path):
    noise = np.random.default_rng(0).normal(scale=0.1, size=(40, 2))
    two = noise + np.where(np.arange(40) < 20, 0.0, 10.0)[:, None]
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", two)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    record = found("coreset", *files, "--size", 2, "--rounds", 80, "--out", tmp_path / "out")
    means = np.stack([two[:20].mean(0), two[20:].mean(0)])
    assert np.allclose(np.sort(record["points"], axis=0), means, atol=0.1)
    assert record["objective"][-1] < record["objective"][0] / 5
    assert np.allclose(load_points(tmp_path / "out" / "coreset.npz").x, record["points"], atol=1e-6)
    assert (tmp_path / "out" / "coreset.png").read_bytes().startswith(b"\x89PNG")


def test_a_coreset_of_tables_comes_in_their_columns_and_units(clinics):
    result = run("coreset", clinics / "n1.csv", "--size", 3, "--rounds", 30, "--out", clinics / "out")
    assert result.exit_code == 0, result.output
    header, *rows = (clinics / "out" / "coreset.csv").read_text().splitlines()
    assert header == "age,smoker" and len(rows) == 3
    assert all(15 < float(row.split(",")[0]) < 45 for row in rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["distance", "a.npz", "a.npz"], "named twice"),
        (["distance", "a.npz", "n1.csv"], "cannot be mixed"),
        (["distance", "a.npz", "notes.txt"], "no .csv, .npy or .npz file"),
        (["distance", "a.npz", "mnits"], "did you mean 'mnist'"),
        (["distance", "a.npz", "b.npz", "--support", "21"], "Take --support 20"),
        (["distance", "a.npz", "b.npz", "--view", "clases"], "did you mean 'classes'"),
        (["distance", "a.npz", "bare.npy", "--view", "classes"], "'bare' has no classes"),
        (["distance", "a.npz", "b.npz", "--power", "0.5"], "p ≥ 1"),
        (["distance", "a.npz", "b.npz", "--limit", "3"], "--points-per-atom"),
        (["cluster", "a.npz"], "two or more"),
        (["cluster"], "--data with --by"),
        (["cluster", "a.npz", "--data", "b.npz", "--by", "label"], "--data with --by"),
        (["cluster", "a.npz", "b.npz", "--clusters", "3"], "1 to 2"),
        (["cluster", "a.npz", "b.npz", "--graph", "near"], "give affinity"),
        (["coreset", "a.npz", "--size", "21"], "Take --size 20"),
    ],
)
def test_wrong_usage_gets_a_sentence_and_writes_nothing(shifted, monkeypatch, words, sentence):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(shifted)
    result = run(*words)
    assert result.exit_code == 2 and sentence in " ".join(result.output.split())
    assert not (shifted / "runs").exists()


@pytest.mark.parametrize("verb", ["distance", "cluster", "coreset"])
def test_an_interrupted_verb_writes_nothing(shifted, monkeypatch, verb):
    pytest.importorskip("sklearn")

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **__: interrupt())
    result = run(verb, shifted / "a.npz", shifted / "b.npz", "--rounds", 2, "--out", shifted / "out")
    assert result.exit_code == 130 and not (shifted / "out").exists()


@pytest.mark.parametrize("verb", ["distance", "cluster", "coreset"])
def test_help_teaches_by_an_example(verb):
    text = " ".join(run(verb, "--help").output.split())
    assert f"For example anabranch {verb}" in text or f"anabranch {verb} --data" in text
