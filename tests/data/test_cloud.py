"""A source made of points draws those points, each at most once, equally often."""

import pytest
import torch

from anabranch.data import Cloud
from anabranch.errors import UsageError
from anabranch.seeds import generator

POINTS = torch.arange(12.0).reshape(6, 2)


def rows(x):
    return {tuple(row) for row in x.tolist()}


def test_draws_are_different_points_of_the_cloud():
    drawn = Cloud(POINTS).points(4, generator(0))
    assert drawn.shape == (4, 2) and len(rows(drawn)) == 4 and rows(drawn) <= rows(POINTS)


def test_all_of_them_is_a_permutation():
    assert rows(Cloud(POINTS).points(6, generator(1))) == rows(POINTS)


def test_more_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"7 source points.*holds 6"):
        Cloud(POINTS).points(7, generator(0))


def test_equal_generators_repeat_and_a_shorter_draw_is_the_beginning_of_a_longer_one():
    short, long = Cloud(POINTS).points(2, generator(3)), Cloud(POINTS).points(5, generator(3))
    assert torch.equal(short, long[:2])


def test_every_point_is_drawn_equally_often():
    draws = generator(0)
    hits = torch.zeros(6)
    for _ in range(3000):
        hits[(Cloud(POINTS).points(2, draws)[:, 0] / 2).long()] += 1
    chi_square = ((hits - 1000) ** 2 / 1000).sum()
    assert chi_square < 30  # five degrees of freedom


def test_knows_its_dimension():
    assert Cloud(torch.zeros(3, 5)).dimension == 5
