"""The distance between labelled data sets against closed forms and against another solver."""

import math
import warnings

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import augment, otdd
from anabranch.seeds import generator
from anabranch.transport import bures, measure, wasserstein

FORMS = ["diagonal", "full", "bures"]


def labelled(seed, size=40, dimension=3, classes=3):
    """Classes with means and covariances of their own, each of them seen more than once."""
    random = generator(seed, "otdd")
    label = torch.arange(size) % classes
    turn = torch.randn(classes, dimension, dimension, generator=random, dtype=torch.float64)
    mean = 2 * torch.randn(classes, dimension, generator=random, dtype=torch.float64)
    x = torch.randn(size, 1, dimension, generator=random, dtype=torch.float64)
    return (x @ turn[label])[:, 0] + mean[label], label


def covariance(x):
    return torch.from_numpy(np.cov(x.numpy().T, bias=True))


def test_augmented_examples_carry_their_class():
    x, label = labelled(0)
    wide, full = augment(x, label), augment(x, label, "full")
    assert wide.shape == (40, 9) and full.shape == (40, 15) and wide.dtype == torch.float64
    for number in range(3):
        mine = x[label == number]
        rows = label == number
        assert torch.equal(wide[:, :3], x) and torch.equal(full[:, :3], x)
        torch.testing.assert_close(wide[rows, 3:6], mine.mean(0).expand(len(mine), 3))
        torch.testing.assert_close(wide[rows, 6:], mine.std(0, correction=0).expand(len(mine), 3))
        root = full[rows, 6:].reshape(-1, 3, 3)
        torch.testing.assert_close(root @ root, covariance(mine).expand(len(mine), 3, 3))


def test_between_diagonal_gaussians_the_euclidean_distance_is_that_of_bures():
    (x0, label0), (x1, label1) = labelled(1), labelled(2)
    apart = (augment(x0, label0)[0] - augment(x1, label1)[0])[3:].square().sum()
    moments = [
        part
        for x, label in ((x0, label0), (x1, label1))
        for part in (x[label == label[0]].mean(0), x[label == label[0]])
    ]
    mean0, mine0, mean1, mine1 = moments
    expected = bures(mean0, covariance(mine0).diagonal().diag(), mean1, covariance(mine1).diagonal().diag())
    assert float(apart) == pytest.approx(float(expected))


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("form", ["diagonal", "full"])
@pytest.mark.parametrize("size", [40, 25])
def test_it_is_the_wasserstein_distance_between_augmented_points(form, power, size):
    first, second = labelled(3), labelled(4, size)
    points = [measure(augment(*side, form)) for side in (first, second)]
    assert otdd(*first, *second, form, power) == pytest.approx(float(wasserstein(*points, power)), rel=1e-9)


def test_with_bures_it_is_what_another_solver_finds():
    (x0, label0), (x1, label1) = labelled(5), labelled(6, 30, classes=2)
    table = np.zeros((3, 2))
    for i in range(3):
        for j in range(2):
            a, b = x0[label0 == i], x1[label1 == j]
            parts = (a.mean(0), b.mean(0), covariance(a), covariance(b))
            table[i, j] = ot.gaussian.bures_wasserstein_distance(*(part.numpy() for part in parts)) ** 2
    cost = ot.dist(x0.numpy(), x1.numpy()) + table[label0.numpy()][:, label1.numpy()]
    assert otdd(x0, label0, x1, label1, "bures") == pytest.approx(math.sqrt(ot.emd2([], [], cost)), rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_data_set_is_at_no_distance_from_itself(form):
    x, label = labelled(7, 120, dimension=20, classes=12)  # ten examples a class: covariances of rank nine
    assert otdd(x, label, x, label, form) == 0.0
    assert otdd(x, label, x, label, form, power=1) == 0.0
    order = torch.randperm(120, generator=generator(8))
    assert otdd(x, label, x[order], label[order], form) < 1e-6
    assert otdd(x, label, x.repeat(2, 1), label.repeat(2), form) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_shift_moves_examples_and_classes_alike(form):
    x, label = labelled(9)
    shift = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    assert otdd(x, label, x + shift, label, form) == pytest.approx(3 * math.sqrt(2))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_symmetric_and_obeys_the_triangle_inequality(form):
    for seed in range(5):
        a, b, c = (labelled(20 + 3 * seed + k, 20 + 5 * k, classes=2 + k) for k in range(3))
        assert otdd(*a, *b, form) == pytest.approx(otdd(*b, *a, form))
        assert otdd(*a, *c, form) <= otdd(*a, *b, form) + otdd(*b, *c, form) + 1e-9


def test_the_diagonal_form_is_a_lower_bound_and_the_full_one_an_upper_bound():
    for seed in range(5):
        first, second = labelled(40 + seed), labelled(50 + seed)
        diagonal, exact, full = (otdd(*first, *second, form) for form in ("diagonal", "bures", "full"))
        assert diagonal < exact < full


def test_names_of_classes_do_not_matter_but_classes_do():
    x, label = labelled(10)
    other = labelled(11)
    renamed = torch.tensor([7, 0, 100])[label]
    assert otdd(x, label, x, renamed) == pytest.approx(0, abs=1e-6)
    assert otdd(x, renamed, *other) == pytest.approx(otdd(x, label, *other))
    assert otdd(x, label, x, torch.zeros_like(label)) > 1


def test_one_class_for_all_is_allowed_and_so_are_images_in_float32():
    x = labelled(12)[0]
    nothing = torch.zeros(40, dtype=torch.uint8)
    assert otdd(x, nothing, x + 1, nothing) == pytest.approx(math.sqrt(6))
    pictures = torch.rand(10, 1, 2, 2, generator=generator(13))
    assert augment(pictures, torch.arange(10) % 2).shape == (10, 12)


def test_a_class_of_one_example_is_named_once_and_has_no_spread():
    x = torch.tensor([[0.0], [2.0], [5.0], [6.0]])
    with pytest.warns(UserWarning, match=r"Classes 4, 9 are in label with one example only") as caught:
        wide = augment(x, torch.tensor([1, 1, 9, 4]))
    assert len(caught) == 1
    assert wide.tolist() == [[0.0, 1.0, 1.0], [2.0, 1.0, 1.0], [5.0, 5.0, 0.0], [6.0, 6.0, 0.0]]
    with pytest.warns(UserWarning, match="Class 9 is in label1"):
        otdd(x, torch.zeros(4).long(), x, torch.tensor([1, 1, 9, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        augment(x, torch.tensor([1, 1, 4, 4]))


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        (None, "label is missing"),
        (torch.zeros(3), "whole numbers"),
        (torch.zeros(2).long(), r"has shape \(2,\)"),
        (torch.zeros(3, 1).long(), r"has shape \(3, 1\)"),
        (torch.tensor([0, -1, 0]), "holds -1"),
    ],
)
def test_labels_that_are_none_are_refused(label, sentence):
    with pytest.raises((DataError, UsageError), match=sentence):
        augment(torch.zeros(3, 2), label)


def test_what_cannot_be_compared_is_refused():
    x, label = torch.zeros(4, 2), torch.zeros(4).long()
    with pytest.raises(DataError, match="no points"):
        augment(x[:0], label[:0])
    with pytest.raises(DataError, match="not finite"):
        augment(x / 0, label)
    with pytest.raises(UsageError, match="one space"):
        otdd(x, label, torch.zeros(4, 3), label)
    with pytest.raises(UsageError, match="label1 is missing"):
        otdd(x, label, x, None)
    with pytest.raises(UsageError, match="'diagonal'"):
        augment(x, label, "diagnal")
    with pytest.raises(UsageError, match="'bures'"):
        otdd(x, label, x, label, "bure")
    with pytest.raises(UsageError, match="p ≥ 1"):
        otdd(x, label, x, label, power=0.5)
