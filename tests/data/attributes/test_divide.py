"""Patterns of observed combinations, and who gets which."""

import pytest
import torch

from anabranch import seeds
from anabranch.data.attributes import (
    COLORED,
    CORNERS,
    AttributeSpace,
    Coverage,
    all_but_one,
    attributed,
    band,
    by_combinations,
    divide,
    keep_observed,
    minimal,
    observed_mask,
)
from anabranch.errors import DataError, UsageError

CUBE = AttributeSpace.of({"a": "123", "b": "12", "c": "1234"})


def test_the_band_of_colored_digits_is_digit_plus_colour_modulo_ten():
    codes = COLORED.combinations()
    assert torch.equal(band(COLORED), (codes[:, 0] + codes[:, 1]) % 10 < 5)
    assert int(band(COLORED).sum()) == 50 and torch.equal(observed_mask(COLORED, "band:5"), band(COLORED))
    assert int(band(COLORED, 1).sum()) == 10


def test_minimal_and_all_but_one_have_the_sizes_they_say_and_determine_all():
    for mask, count in ((minimal(CUBE), 1 + 2 + 1 + 3), (all_but_one(CUBE), 23)):
        assert int(mask.sum()) == count
        assert Coverage(CUBE, {"a": mask.long()}).problems() == []
    assert not all_but_one(CUBE, "a=2,b=1,c=3")[CUBE.encode(CUBE.parse("a=2,b=1,c=3"))]


@pytest.mark.parametrize(
    ("observed", "says"),
    [
        ("bnad", "did you mean 'band'"),
        ("band:0", "width lies in 1 … 4"),
        ("minimal:2", "only a band"),
        (["a=1"], "not a whole combination"),
        ([24], "names no combination"),
        ([], "at least"),
        (torch.zeros(24, dtype=torch.bool), "at least"),
        (torch.ones(23, dtype=torch.bool), "each of the 24"),
    ],
)
def test_patterns_that_cannot_be_are_refused(observed, says):
    with pytest.raises(UsageError, match=says):
        observed_mask(CUBE, observed)


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_a_division_covers_everything_once_and_repeats(name):
    data = attributed("corners", count=500)
    parts = divide(data, name, 5, seeds.generator(0, "partition"))
    again = divide(data, name, 5, seeds.generator(0, "partition"))
    assert torch.equal(torch.cat(list(parts.values())).sort().values, torch.arange(500))
    assert all(torch.equal(parts[silo], again[silo]) for silo in parts)
    with pytest.raises(UsageError, match="did you mean 'iid'"):
        divide(data, "iidd", 5, seeds.generator(0))
    with pytest.raises(UsageError, match="Known: dirichlet, dirichlet:"):
        divide(data, "dirichlett", 5, seeds.generator(0))


def test_dirichlet_over_one_attribute_leaves_a_silo_few_of_its_outcomes():
    data = attributed("colored-digits", count=900)
    parts = divide(data, "dirichlet:digit", 5, seeds.generator(3), alpha=0.05)
    assert torch.cat(list(parts.values())).sort().values.equal(torch.arange(len(data)))
    met = [[len(torch.unique(data.codes[index, place])) for index in parts.values()] for place in (0, 1)]
    assert min(met[0]) <= 3 and min(met[1]) >= 8  # each digit that a silo has comes in all colours
    with pytest.raises(UsageError, match="'digit'"):
        divide(data, "dirichlet:digits", 5, seeds.generator(3))


def test_dirichlet_skews_combinations_where_iid_does_not():
    data = attributed("corners", count=4000)
    spread = {}
    for name in ("iid", "dirichlet"):
        counts = data.coverage(divide(data, name, 4, seeds.generator(1, "p"))).counts
        shares = torch.stack(list(counts.values())).double()
        spread[name] = float((shares / shares.sum(0)).max(0).values.mean())  # the largest holder's share
    assert spread["iid"] < 0.3 < 0.6 < spread["dirichlet"]


def test_combinations_go_where_they_are_given_and_shared_ones_are_dealt_evenly():
    label = torch.tensor([0] * 10 + [1] * 7 + [3] * 4)
    given = {"west": ["horizontal=left,vertical=top", 1], "east": [1, 3]}
    parts = by_combinations(label, CORNERS, given, seeds.generator(0))
    assert torch.equal(torch.cat(list(parts.values())).sort().values, torch.arange(21))
    coverage = Coverage.of(CORNERS, {silo: label[index] for silo, index in parts.items()})
    assert coverage.counts["west"][0] == 10 and coverage.counts["east"][3] == 4
    assert sorted(int(coverage.counts[silo][1]) for silo in parts) == [3, 4]
    again = by_combinations(label, CORNERS, given, seeds.generator(0))
    other = by_combinations(label, CORNERS, given, seeds.generator(1))
    assert torch.equal(parts["west"], again["west"]) and parts["west"].tolist() != other["west"].tolist()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({}, UsageError, "at least one silo"),
        ({"a": []}, UsageError, "given no combinations"),
        ({"a": [0]}, UsageError, "'horizontal=left, vertical=bottom' of the data was given to no silo"),
        ({"a": [0, 1], "b": [3]}, DataError, "0 samples of 'horizontal=right, vertical=bottom'"),
        ({"a": [0, 1], "b": [0], "c": [0]}, DataError, "2 samples"),
        ({"a": ["horizontal=up"]}, UsageError, "no outcome of 'horizontal'"),
    ],
)
def test_a_gift_that_cannot_be_is_refused(given, error, says):
    with pytest.raises(error, match=says):
        by_combinations(torch.tensor([0, 0, 1]), CORNERS, given, seeds.generator(0))


def test_what_was_not_observed_is_left_out():
    data = attributed("corners", count=200)
    for observed in (torch.tensor([0, 3]), [0, 3], torch.tensor([True, False, False, True])):
        assert set(keep_observed(data, observed).label.tolist()) == {0, 3}
    kept = keep_observed(data, [0])
    assert len(kept) == int((data.label == 0).sum()) and torch.equal(kept.x, data.x[data.label == 0])
