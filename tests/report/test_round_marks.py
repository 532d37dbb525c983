"""Marks of logarithmic axes: enough of them, in range, and told apart."""

import pytest

from anabranch.report._charts import round_marks


@pytest.mark.parametrize("low", [1e-9, 3.3e-4, 0.07, 0.96, 1.0, 9.7, 41.3, 64.2, 995.0, 1.2e6])
@pytest.mark.parametrize("times", [1.05, 1.3, 2.0, 3.1, 9.9, 47.0, 800.0, 1e7])
def test_three_to_nine_round_numbers_between_the_ends(low, times):
    marks = round_marks(low, low * times)
    assert 3 <= len(marks) <= 9
    assert marks == sorted(set(marks)) and low <= marks[0] and marks[-1] <= low * times
    assert len({f"{mark:g}" for mark in marks}) == len(marks)
