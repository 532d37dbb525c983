"""Precision and recall where both are known."""

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.metrics import PrecisionRecall, precision_recall
from anabranch.seeds import generator


def cloud(count, *names):
    return torch.randn(count, 4, generator=generator(0, "precision", *names))


def test_a_set_covers_itself_and_nothing_far_away():
    x = cloud(60)
    assert precision_recall(x, x) == PrecisionRecall(1.0, 1.0)
    assert precision_recall(x, x + 100) == PrecisionRecall(0.0, 0.0)


def test_a_missing_mode_costs_recall_and_a_wrong_one_precision():
    near, far = cloud(50, "near"), cloud(50, "far") + 100
    both = torch.cat([near, far])
    assert precision_recall(both, near) == PrecisionRecall(1.0, 0.5)
    assert precision_recall(near, both) == PrecisionRecall(0.5, 1.0)


def test_it_is_the_definition():
    real, made, k = cloud(40, "real").double(), cloud(30, "made").double() + 0.8, 3

    def inside(point, others):
        for other in others:
            radius = sorted(float((other - third).norm()) for third in others)[k]
            if float((point - other).norm()) <= radius:
                return True
        return False

    found = precision_recall(real, made, k, chunk=7)
    assert found.precision == pytest.approx(sum(inside(point, real) for point in made) / 30)
    assert found.recall == pytest.approx(sum(inside(point, made) for point in real) / 40)
    assert 0.2 < found.precision < 1 and 0.2 < found.recall < 1
    assert precision_recall(made, real, k) == PrecisionRecall(found.recall, found.precision)


def test_points_that_repeat_have_balls_of_no_size_and_still_cover_themselves():
    x = torch.cat([cloud(30), cloud(30), cloud(30), cloud(30), cloud(30)]) + 1000
    assert precision_recall(x, x[torch.randperm(150, generator=generator(1))]) == PrecisionRecall(1.0, 1.0)


@pytest.mark.parametrize("k", [0, 5])
def test_there_must_be_k_others(k):
    with pytest.raises(UsageError, match=f"k = {k} was given with 9 real and 5 generated"):
        precision_recall(cloud(9), cloud(5), k)
