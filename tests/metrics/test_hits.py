"""Samples that land where they should, and those that do not."""

import math

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import by_combination, hit_rate
from anabranch.seeds import generator


def test_a_perfect_sampler_hits_as_the_chi_square_distribution_says():
    centre, deviation = torch.tensor([1.0, -1.0]), 0.2
    samples = centre + deviation * torch.randn(40_000, 2, generator=generator(0, "hits"))
    assert hit_rate(samples, centre, 3 * deviation) == pytest.approx(1 - math.exp(-4.5), abs=0.002)


def test_each_sample_may_have_its_own_centre():
    centres = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    assert hit_rate(centres + 0.1, centres, 1.0) == 1.0 and hit_rate(centres.flip(0), centres, 1.0) == 0.0


def test_what_is_not_finite_misses():
    samples = torch.tensor([[0.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf]])
    assert hit_rate(samples, torch.zeros(2), 1.0) == 0.25


def test_every_combination_is_measured_by_itself():
    samples, label = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([7, 3, 7])
    assert by_combination(lambda part, name: (len(part), name), samples, label) == {3: (1, 3), 7: (2, 7)}
    with pytest.raises(UsageError, match="for 3 samples"):
        by_combination(lambda part, name: 0, samples, label[:2])


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match=r"give \(n, d\) and"):
        hit_rate(torch.zeros(3, 2), torch.zeros(3), 1.0)
    with pytest.raises(UsageError, match="must be positive"):
        hit_rate(torch.zeros(3, 2), torch.zeros(2), math.nan)
    with pytest.raises(DataError, match="no samples"):
        hit_rate(torch.zeros(0, 2), torch.zeros(2), 1.0)
