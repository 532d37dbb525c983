"""The Inception Score where it is known, and what has none."""

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import class_probabilities, inception_score
from anabranch.seeds import generator


def test_from_one_to_the_number_of_classes():
    alike = torch.full((50, 7), 1 / 7)
    certain = torch.eye(7).repeat(20, 1)
    one_class = torch.eye(7)[:1].repeat(50, 1)
    assert inception_score(alike, generator(0)).value == pytest.approx(1)
    assert inception_score(one_class, generator(0)).value == pytest.approx(1)
    assert inception_score(certain, generator(0), splits=1).value == pytest.approx(7)


def test_two_classes_of_doubtful_images_by_hand():
    """Half (p, 1 − p), half (1 − p, p): p(y) is even, so KL is log 2 less the entropy of p."""
    p = torch.tensor(0.8, dtype=torch.float64)
    rows = torch.stack([torch.stack([p, 1 - p]), torch.stack([1 - p, p])]).repeat(30, 1)
    expected = float(2 * p**p * (1 - p) ** (1 - p))
    assert inception_score(rows, generator(0), splits=1).value == pytest.approx(expected, rel=1e-12)


def test_splits_are_the_definition_on_random_parts():
    rows = torch.randn(41, 5, generator=generator(0, "rows"), dtype=torch.float64).softmax(1)
    parts = torch.randperm(41, generator=generator(3)).tensor_split(4)
    values = []
    for part in parts:
        mean = rows[part].mean(0)
        values.append(float((rows[part] * (rows[part] / mean).log()).sum(1).mean().exp()))
    found = inception_score(rows, generator(3), splits=4)
    assert found.value == pytest.approx(sum(values) / 4)
    assert found.deviation == pytest.approx(float(torch.tensor(values, dtype=torch.float64).std(correction=0)))


def test_samples_in_the_order_of_their_classes_lose_nothing():
    rows = torch.eye(4).repeat_interleave(250, 0)
    assert inception_score(rows, generator(0)).value > 3.9


def test_probabilities_come_from_features_and_the_layer_of_classes():
    features, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    expected = torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64).softmax(1)
    torch.testing.assert_close(class_probabilities(features, weight), expected)
    level = class_probabilities(features, weight, torch.tensor([1.0, 0.0, 2.0]))
    torch.testing.assert_close(level, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    with pytest.raises(UsageError, match="with 3 classes it is"):
        class_probabilities(features, weight, torch.zeros(2))
    with pytest.raises(UsageError, match="one space"):
        class_probabilities(torch.zeros(4, 5), weight)


def test_features_have_no_score_and_are_told_why():
    with pytest.raises(DataError, match=r"no probabilities: .* without the layer of classes"):
        inception_score(torch.rand(8, 2048, generator=generator(0)), generator(0))
    with pytest.raises(DataError, match=r"the least value is -0\.5"):
        inception_score(torch.tensor([[1.5, -0.5]]), generator(0), splits=1)
    with pytest.raises(UsageError, match="9 splits were asked for, of 8 samples"):
        inception_score(torch.full((8, 2), 0.5), generator(0), splits=9)
