"""The study `toy`: its samples, its truth, and that its figures mean what they say."""

import numpy as np
import pytest
import torch

from anabranch import data
from anabranch.data import ImageSet
from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import toy
from anabranch.transport import measure, wasserstein

SMALL = {
    "sizes": {"points": [10, 40], "draws": 2, "drawn": 80, "exact_most": 20},
    "evolution": {"points": 30},
    "draws": {"points": 48, "draws": 3},
    "digits": {"points": 32, "draws": 2},
    "traffic": {"points": 200},
}


def cell(folder, problem, method, **options):
    chosen = {**recipe("fedwad-toy").options(problem, method, "smoke"), **SMALL, **options}
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell(problem, method, 0, "smoke", chosen, folder, 1)


def values(rows, metric):
    return {row.get("x"): row["value"] for row in rows if row["metric"] == metric}


def test_gaussians_are_four_apart_and_of_the_papers_scale():
    for dimension, variance in ((2, 0.1), (50, 1.0)):
        first, second = toy.gaussians(dimension, 20_000, 10_000, 0, 0)
        assert float((second.mean(0) - first.mean(0)).norm()) == pytest.approx(4, rel=0.02)
        assert float(first.var(0).mean()) == pytest.approx(variance, rel=0.02)
        assert len(second) == 10_000
    assert not torch.equal(toy.gaussians(2, 5, 5, 0, 0)[0], toy.gaussians(2, 5, 5, 0, 1)[0])


def test_the_truth_is_the_distance_by_another_solver():
    first, second = toy.gaussians(3, 30, 20, 0, 0)
    assert toy.exact(first, second) == pytest.approx(float(wasserstein(measure(first), measure(second))), rel=1e-9)


def test_sizes_start_where_a_silo_has_enough_points_and_never_fall_below_the_truth(tmp_path):
    rows = toy.run(cell(tmp_path, "2d", "s10", rounds=5, support=20))
    assert list(values(rows, "excess")) == [40] and values(rows, "excess")[40] > 0
    assert values(rows, "time_ratio")[40] > 0
    rows = toy.run(cell(tmp_path, "2d", "exact", rounds=10))
    assert list(values(rows, "excess")) == [10] and -1e-9 < values(rows, "excess")[10] < 1e-3
    rows = toy.run(cell(tmp_path, "2d", "emd"))
    assert values(rows, "time_ratio") == {10: 1.0, 40: 1.0} and values(rows, "excess") == {10: 0.0, 40: 0.0}


def test_the_other_sample_is_a_third_where_the_problem_says_so(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(toy, "_race", lambda cell, n, m, number: seen.append((n, m)) or {"seconds": 1.0})
    toy.run(cell(tmp_path, "2d-1to3", "s10", support=2))
    assert seen[1:] == [(10, 3), (10, 3), (40, 13), (40, 13)]


def test_the_error_falls_from_round_to_round_and_the_path_is_kept(tmp_path):
    rows = toy.run(cell(tmp_path, "evolution", "exact", rounds=6))
    excess = values(rows, "excess")
    assert list(excess) == [1, 2, 3, 4, 5, 6] and excess[6] < 0.01 * excess[1]
    assert values(rows, "best_excess")[None] == min(excess.values())
    with np.load(tmp_path / "path.npz", allow_pickle=False) as arrays:
        assert arrays["xi_0"].shape == arrays["first"].shape == (30, 2) and "xi_6" in arrays
        middle = (arrays["first"].mean(0) + arrays["second"].mean(0)) / 2
        assert arrays["xi_6"].mean(0) == pytest.approx(middle, abs=0.1)  # t = ½: ξ comes to rest half way


def test_wrong_bounds_are_counted(tmp_path):
    def found(value, debiased, lower):
        return toy.Distance(value, debiased, lower, None, (), True, {})

    outcomes = [(found(4.0, 3.1, 1.0), 3.0), (found(2.9, 3.0, 1.0), 3.0), (found(6.0, 2.4, 3.1), 3.0)]
    rows = toy._trust(cell(tmp_path, "draws-50d", "s100-bounded"), outcomes)
    figures = {row["metric"]: row["value"] for row in rows}
    assert (figures["draws"], figures["upper_wrong"], figures["lower_wrong"]) == (3, 1, 1)
    assert figures["debiased_error"] == pytest.approx(0.1 / 3)


def test_draws_enclose_the_truth(tmp_path):
    rows = toy.run(cell(tmp_path, "draws-50d", "s100-bounded", support=12, rounds=4, dimension=10))
    figures = {row["metric"]: row["value"] for row in rows}
    assert (figures["draws"], figures["upper_wrong"], figures["lower_wrong"]) == (3, 0, 0)
    assert figures["debiased_error"] < figures["value_error"]


def test_digits_compare_all_pairs_of_classes(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(10).repeat(64)
    bright = (20 * label)[:, None, None, None] + torch.randint(0, 30, (640, 1, 3, 3), generator=generator)
    images = ImageSet(bright.to(torch.uint8), label, tuple("0123456789"))
    monkeypatch.setattr(data, "load_images", lambda name: images)
    rows = toy.run(cell(tmp_path, "digits", "s100-bounded", support=8, rounds=4))
    figures = {row["metric"]: row["value"] for row in rows}
    assert (figures["draws"], figures["upper_wrong"], figures["lower_wrong"]) == (90, 0, 0)
    assert figures["disorder_value"] < 0.05  # classes of brightness 20 k are apart as their numbers are


def test_traffic_counts_numbers_against_those_of_the_data(tmp_path):
    rows = toy.run(cell(tmp_path, "traffic-50d", "s100", support=5, rounds=3, dimension=4))
    numbers = values(rows, "numbers")[200]
    assert numbers >= 3 * 2 * 5 * 5 and values(rows, "numbers_ratio")[200] == numbers / 800


def test_pictures_and_tables_of_what_is_there(tmp_path):
    places = [("2d", "emd"), ("2d", "s10"), ("2d-1to3", "s10"), ("evolution", "exact"), ("draws-50d", "s100-bounded")]
    rows, folders = [], []
    for problem, method in places:
        support = {} if method in ("emd", "exact") else {"support": 3}
        one = cell(tmp_path / problem / method / "seed-0", problem, method, rounds=3, **support)
        rows += toy.run(one)
        folders.append(one.folder)
    pictures = toy.draw(rows, folders, tmp_path)
    assert {path.name for path in pictures.values()} == {"sizes.png", "ratios.png", "evolution.png", "bounds.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.values())
    titles = dict(toy.tables(rows))
    assert titles["High dimension"][1][:2] == ["draws-50d", "s100-bounded"]
    assert toy.draw([], [], tmp_path) == {} and toy.tables([]) == []
