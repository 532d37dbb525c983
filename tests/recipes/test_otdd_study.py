"""Distances between image sets: against exact OTDD, and in the pictures of the paper."""

from pathlib import Path
from typing import Any

import pytest
import torch

from anabranch.data import ImageSet
from anabranch.errors import DataError, UsageError
from anabranch.metrics import otdd as exact_otdd
from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import otdd
from anabranch.runs import Row

SHIFT = {"mnist": 0, "fashion-mnist": 40, "digits": 90, "cifar10": 150}  # how bright each set is


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sets of one noise at different brightness: their distances are known to grow with the difference."""

    def load(name: str, split: str = "train", folder: object = None) -> ImageSet:
        if name not in SHIFT:
            raise DataError("not there")
        assert split == "train"
        noise = torch.randint(0, 100, (80, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return ImageSet(noise + SHIFT[name], torch.arange(80) % 4, tuple("0123"))

    monkeypatch.setattr(otdd, "load_images", load)


def cell(folder: Path, problem: str, **changes: Any) -> StudyCell:
    options = {**recipe("fedwad-otdd").options(problem, "both", "smoke"), **changes}
    return StudyCell(problem, "both", 0, "smoke", options, folder, 1)


def values(rows: list[Row], method: str, metric: str) -> dict[Any, float]:
    key = "pair" if rows[0]["problem"] == "matrix" else "x"
    return {row.get(key): row["value"] for row in rows if (row["method"], row["metric"]) == (method, metric)}


def test_every_set_becomes_grey_images_of_one_size() -> None:
    colour = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    colour[0, 0], colour[1] = 255, 255
    found = otdd.grey(ImageSet(colour, torch.arange(2), ("red", "white")))
    assert found.shape == (2, 784)
    assert torch.allclose(found[0], torch.tensor(0.299), atol=1e-5)
    assert torch.allclose(found[1], torch.tensor(1.0), atol=1e-5)
    small = ImageSet(torch.full((1, 1, 8, 8), 51, dtype=torch.uint8), torch.zeros(1, dtype=torch.long), ("a",))
    assert torch.allclose(otdd.grey(small), torch.tensor(0.2), atol=1e-6)
    same = ImageSet(torch.arange(784, dtype=torch.uint8).view(1, 1, 28, 28), torch.zeros(1, dtype=torch.long), ("a",))
    assert torch.equal(otdd.grey(same), same.points())


@pytest.mark.usefixtures("sets")
def test_the_matrix_has_every_pair_never_below_exact_and_in_its_order(tmp_path: Path) -> None:
    rows = otdd.run(cell(tmp_path, "matrix", points=40))
    truth = values(rows, "otdd", "distance")
    assert len(truth) == 6
    for name in ("S = n/5, K = 20", "S = n/5, long", "S = n, K = 20"):
        found = values(rows, name, "distance")
        assert all(found[pair] >= truth[pair] - 1e-6 for pair in truth)
        assert sorted(found, key=found.__getitem__) == sorted(truth, key=truth.__getitem__)
        assert values(rows, name, "spearman")[None] == pytest.approx(1)
        assert values(rows, name, "disorder")[None] == pytest.approx(0)
    assert values(rows, "S = n, K = 20", "excess")[None] < values(rows, "S = n/5, K = 20", "excess")[None]


@pytest.mark.usefixtures("sets")
def test_the_exact_column_is_otdd_on_the_samples_of_the_seed(tmp_path: Path) -> None:
    this = cell(tmp_path, "matrix", points=30)
    sets = otdd._sets(this, ["mnist", "digits"], 30)
    first, second = sets["mnist"], sets["digits"]
    truth = values(otdd.run(this), "otdd", "distance")
    assert truth["mnist | digits"] == exact_otdd(first.x, first.label, second.x, second.label)
    assert len(first.x) == 30


@pytest.mark.usefixtures("sets")
def test_sets_that_are_not_at_hand_are_left_out_only_where_they_are_optional(tmp_path: Path) -> None:
    assert list(otdd._sets(cell(tmp_path, "matrix"), ["mnist"], 20, ["kmnist", "usps"])) == ["mnist"]
    with pytest.raises(DataError, match="not there"):
        otdd._sets(cell(tmp_path, "matrix"), ["kmnist"], 20)


def test_order_is_one_for_the_same_and_minus_one_for_the_opposite() -> None:
    assert otdd._order([1.0, 2.0, 5.0], [10.0, 11.0, 12.0]) == pytest.approx(
        {"spearman": 1, "kendall": 1, "disorder": 0}
    )
    assert otdd._order([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(
        {"spearman": -1, "kendall": -1, "disorder": 2}
    )


@pytest.mark.usefixtures("sets")
def test_more_atoms_come_nearer_and_every_x_has_its_exact_value(tmp_path: Path) -> None:
    rows = otdd.run(cell(tmp_path, "supports", points=60, supports=[2, 15, 60, 1000]))
    found = values(rows, "fedwad", "excess")
    assert list(found) == [2, 15, 60]
    assert found[2] > found[60] >= -1e-6
    assert list(values(rows, "otdd", "distance")) == [2, 15, 60]


@pytest.mark.usefixtures("sets")
def test_sizes_have_a_line_for_each_number_of_atoms_and_one_exact_value_a_size(tmp_path: Path) -> None:
    rows = otdd.run(cell(tmp_path, "sizes", sizes=[20, 60], atoms=[5, 40], rounds=4))
    assert list(values(rows, "S = 5", "distance")) == [20, 60]
    assert list(values(rows, "S = 40", "distance")) == [60]
    exact = [row for row in rows if row["method"] == "otdd" and row["metric"] == "distance"]
    assert len(exact) == 2 * 2  # pairs and sizes


@pytest.mark.usefixtures("sets")
def test_pictures_and_tables_of_what_there_is(tmp_path: Path) -> None:
    rows = otdd.run(cell(tmp_path, "matrix", points=30))
    rows += otdd.run(cell(tmp_path, "rounds", points=30, rounds=[1, 3], support=5))
    rows += otdd.run(cell(tmp_path, "sizes", sizes=[20, 40], atoms=[5], rounds=3))
    pictures = otdd.draw(rows, [], tmp_path)
    assert sorted(path.name for path in pictures.values()) == ["matrix.png", "parameters.png", "sizes.png"]
    assert all(path.stat().st_size > 5000 for path in pictures.values())
    titles = dict(otdd.tables(rows))
    lines = next(iter(titles.values()))
    assert lines[0] == ["pair", "exact OTDD", "S = n/5, K = 20", "S = n/5, long", "S = n, K = 20"]
    assert [line[0] for line in lines[-4:]] == ["spearman", "kendall", "excess", "seconds"]
    assert otdd.draw([], [], tmp_path) == {}


def test_an_unknown_kind_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kind of problem 'matrx'; did you mean 'matrix'"):
        otdd.run(cell(tmp_path, "matrix", kind="matrx"))
