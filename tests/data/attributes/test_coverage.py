"""Coverage against its definition, brute force, and the words for what is missing."""

from itertools import product

import numpy as np
import pytest
import torch

from anabranch.data.attributes import AttributeSpace, Coverage, minimal
from anabranch.errors import DataError, UsageError

PLANE = AttributeSpace.of({"horizontal": ["left", "right"], "vertical": ["top", "bottom"]})
TEN = AttributeSpace.of({"digit": "0123456789", "color": "abcdefghij"})


def seen(space, mask):
    return Coverage(space, {"a": mask.flatten().long()})


def random_space(random):
    return AttributeSpace.of({f"a{i}": "12345"[: random.integers(2, 5)] for i in range(random.integers(2, 5))})


def test_counts_of_two_silos_give_what_the_definitions_say():
    coverage = Coverage.of(PLANE, {"a": torch.tensor([0, 0, 1]), "b": torch.tensor([1, 3])})
    assert coverage.counts["a"].tolist() == [2, 1, 0, 0] and coverage.total.tolist() == [2, 2, 0, 1]
    assert coverage.observed.tolist() == [True, True, False, True]
    assert coverage.known.tolist() == [0, 1, 3] and coverage.novel.tolist() == [2]
    assert coverage.share == 0.75 and coverage.minimum == 0.75 and coverage.needed == 3
    assert coverage.marginal == {"horizontal": 1.0, "vertical": 1.0}
    assert coverage.holds("b").tolist() == [False, True, False, True]
    assert [each.tolist() for each in coverage.seen("b")] == [[True, True], [False, True]]
    assert coverage.problems() == [] and coverage.check() == []


def test_the_minimum_of_the_paper():
    assert seen(TEN, minimal(TEN)).minimum == pytest.approx(19 / 100)
    space = AttributeSpace.of({"shape": "abc", "scale": "123", "position": "1234"})
    assert seen(space, minimal(space)).minimum == pytest.approx(8 / 36)


@pytest.mark.parametrize("seed", range(25))
def test_determined_is_membership_in_the_row_space(seed):
    random = np.random.default_rng(seed)
    space = random_space(random)
    mask = torch.from_numpy(random.random(len(space)) < random.uniform(0.1, 0.7))
    rows = np.array(
        [
            [1, *(int(c == o) for c, size in zip(codes, space.sizes, strict=True) for o in range(size))]
            for codes in product(*(range(size) for size in space.sizes))
        ]
    )
    basis = rows[mask.numpy()]
    rank = np.linalg.matrix_rank(basis) if len(basis) else 0
    expected = [bool(np.linalg.matrix_rank(np.vstack([basis, row])) == rank) for row in rows]
    coverage = seen(space, mask)
    assert coverage.determined.tolist() == expected
    assert (coverage.problems() == []) == all(expected)
    assert not all(expected) or coverage.share >= coverage.minimum  # eq. (2) is necessary


@pytest.mark.parametrize("seed", range(5))
def test_main_effects_that_agree_on_what_is_observed_agree_on_what_is_determined(seed):
    """Least squares on noise-free main effects recovers exactly the determined combinations."""
    random = np.random.default_rng(100 + seed)
    space = random_space(random)
    mask = torch.from_numpy(random.random(len(space)) < 0.45)
    effects = [random.normal(size=size) for size in space.sizes]
    codes = space.combinations().numpy()
    truth = 3 + sum(effect[codes[:, i]] for i, effect in enumerate(effects))
    design = np.hstack([np.ones((len(space), 1)), *(np.eye(size)[codes[:, i]] for i, size in enumerate(space.sizes))])
    fit = np.linalg.lstsq(design[mask.numpy()], truth[mask.numpy()], rcond=None)[0]
    right = np.abs(design @ fit - truth) < 1e-8
    assert right[seen(space, mask).determined.numpy()].all()
    assert not right[~seen(space, mask).determined.numpy()].any()


def test_a_star_is_the_least_that_determines_all():
    coverage = seen(TEN, minimal(TEN))
    assert len(coverage.known) == coverage.needed == 19 and bool(coverage.determined.all())
    for label in coverage.known.tolist():
        fewer = minimal(TEN).clone()
        fewer[label] = False
        assert not bool(seen(TEN, fewer).determined.all())


def test_enough_combinations_can_still_leave_groups_apart():
    mask = torch.zeros(10, 10, dtype=torch.bool)
    mask[:5, :5] = mask[5:, 5:] = True
    coverage = seen(TEN, mask)
    assert coverage.share == 0.5 > coverage.minimum
    assert torch.equal(coverage.determined.reshape(10, 10), mask)
    first, second = coverage.problems()
    assert "50 combinations do not follow" in first and "digit=0, color=f" in first
    assert "2 groups" in second and "'digit=5'" in second and "1 combination that joins" in second
    mask[0, 9] = True
    assert seen(TEN, mask).problems() == []


def test_what_is_missing_is_said_and_can_be_forced():
    space = AttributeSpace.of({"wind": ["weak", "strong"], "rain": ["no", "yes"]})
    coverage = Coverage.of(space, {"north": torch.tensor([0, 1])})
    assert coverage.marginal == {"wind": 0.5, "rain": 1.0}
    assert len(coverage.problems()) == 2 and coverage.problems()[0] == "Outcome 'wind=strong' occurs in no silo."
    assert any(
        "C = 2/4" in each and "3 combinations are needed, 2 are observed" in each for each in coverage.problems()
    )
    with pytest.raises(DataError, match="'wind=strong' occurs in no silo"):
        coverage.check()
    assert coverage.check(force=True) == coverage.problems()


def test_where_counts_are_withheld_what_is_missing_may_be_there():
    counts = {name: torch.tensor([20, 20, 0, 0]) for name in ("north", "south")}
    few = Coverage(PLANE, counts, {"north": 1, "south": 0})
    unseen, *_, untold = few.problems()
    assert unseen == "Outcome 'horizontal=right' occurs in no silo's counts."
    assert untold.startswith("Silo 'north' tells no count of 1 sample, which may be what is missing: a count below a")
    assert few.problems(whose=False) == few.problems()[:-1]  # for those who need not know whose counts are small
    assert "lower smallest_group there" in untold
    with pytest.raises(DataError, match="smallest_group"):
        few.check()
    both = Coverage(PLANE, counts, {"north": 3, "south": 4}).problems()[-1]
    assert both.startswith("Silos 'north', 'south' tell no count of 7 samples, which")
    enough = Coverage(PLANE, {"north": torch.tensor([20, 20, 0, 20])}, {"north": 3})
    assert enough.problems() == []  # nothing is missing, whatever else there is


def test_three_attributes_that_do_not_determine_are_named_by_example():
    space = AttributeSpace.of({"a": "12", "b": "12", "c": "12"})
    mask = torch.zeros(2, 2, 2, dtype=torch.bool)
    mask[0, 0] = mask[1, 1] = True  # a and b always together
    problems = seen(space, mask).problems()
    assert len(problems) == 1 and "4 combinations" in problems[0] and "a=1, b=2, c=1" in problems[0]


def test_a_large_space_is_checked_within_seconds():
    space = AttributeSpace.of({name: [str(i) for i in range(n)] for name, n in (("a", 256), ("b", 256), ("c", 16))})
    coverage = seen(space, minimal(space))
    assert bool(coverage.determined.all()) and coverage.needed == len(coverage.known)


def test_counts_that_do_not_fit_are_refused_by_name():
    for bad in (torch.ones(3, dtype=torch.long), torch.ones(4), torch.tensor([0, -1, 1, 1])):
        with pytest.raises(DataError, match="Silo 'n' gave counts"):
            Coverage(PLANE, {"n": bad})
    with pytest.raises(UsageError, match="at least one"):
        Coverage(PLANE, {})
    with pytest.raises(UsageError, match="Silo 'n' holds 1 label of 2 that names no combination, the first in row 2"):
        Coverage.of(PLANE, {"m": torch.tensor([0]), "n": torch.tensor([0, 4])})
    with pytest.raises(DataError, match="one outcome"):
        Coverage(AttributeSpace((("a", ("x",)), ("b", ("y", "z")))), {"n": torch.ones(2, dtype=torch.long)})
    with pytest.raises(UsageError, match="There is no silo 'm'"):
        Coverage.of(PLANE, {"n": torch.tensor([0])}).holds("m")
