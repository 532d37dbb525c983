"""Memorisation: copies count, fresh draws count as the quantile says, mixtures in proportion."""

import warnings

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.metrics import memorisation, memorisation_threshold
from anabranch.seeds import generator


def normal(count, *names):
    return torch.randn(count, 6, generator=generator(0, "memorisation", *names))


@pytest.fixture(scope="module")
def sets():
    train, test = normal(3000, "train"), normal(3000, "test")
    return train, memorisation_threshold(train, test)


def test_training_images_are_copies_and_fresh_ones_are_not(sets):
    train, threshold = sets
    copies = memorisation(train[500:1500], train, threshold)
    assert copies.share == 1 and torch.equal(copies.nearest, torch.arange(500, 1500))
    assert float(copies.distance.max()) == 0
    fresh = memorisation(normal(4000, "fresh"), train, threshold)
    assert fresh.share == pytest.approx(0.01, abs=0.005)
    assert memorisation(normal(500, "far") + 50, train, threshold).share == 0


@pytest.mark.parametrize("copied", [0.1, 0.5])
def test_a_mixture_counts_in_proportion(sets, copied):
    train, threshold = sets
    count = int(2000 * copied)
    near = train[:count] + 1e-3 * normal(count, "noise")
    found = memorisation(torch.cat([near, normal(2000 - count, "fresh")]), train, threshold)
    assert found.share == pytest.approx(copied + 0.01 * (1 - copied), abs=0.007)


def test_the_threshold_is_the_quantile_of_the_test_images():
    train = torch.tensor([[0.0], [100.0]])
    test = torch.arange(1.0, 12.0)[:, None]
    assert memorisation_threshold(train, test, 0.1) == pytest.approx(2)
    assert memorisation(torch.tensor([[2.0], [97.5], [103.0], [-1.0]]), train, 2.0).share == 0.5


def test_neighbours_are_exact_in_every_chunk_and_far_from_the_origin():
    train, made = normal(200, "train").double() + 1e4, normal(50, "made").double() + 1e4
    every = (made[:, None] - train[None]).norm(dim=2)
    for chunk in (1, 7, 1024):
        found = memorisation(made, train, 1.0, chunk)
        assert torch.equal(found.nearest, every.argmin(1))
        torch.testing.assert_close(found.distance, every.min(1).values)


def test_the_nearest_pairs_come_first():
    train = torch.tensor([[0.0], [10.0], [20.0]])
    found = memorisation(torch.tensor([[13.0], [20.5], [1.0]]), train, 0.7)
    assert found.share == pytest.approx(1 / 3) and found.pairs(2).tolist() == [[1, 2], [2, 0]]
    assert found.pairs(9).shape == (3, 2)


def test_test_images_that_are_training_images_are_told_of():
    train, test = normal(500, "train"), normal(500, "test")
    with pytest.warns(UserWarning, match=r"1\.0% of the test images are copies"):
        threshold = memorisation_threshold(train, torch.cat([test, train[:20]]))
    assert threshold == 0 and memorisation(train, train, threshold).share == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memorisation_threshold(train, test)


def test_what_makes_no_sense_is_refused():
    for quantile in (0, 1):
        with pytest.raises(UsageError, match=f"quantile {quantile} was given"):
            memorisation_threshold(normal(9, "a"), normal(9, "b"), quantile)
    for threshold in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="not negative"):
            memorisation(normal(9, "a"), normal(9, "b"), threshold)
    with pytest.raises(UsageError, match="one space"):
        memorisation(normal(9, "a"), normal(9, "b")[:, :2], 1.0)
