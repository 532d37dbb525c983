"""Fréchet distances: closed forms, another root's answer, statistics in parts, the bias and what takes it away."""

import math
import warnings

import numpy
import pytest
import scipy.linalg
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import FeatureStatistics, extrapolated_frechet, frechet_bias, frechet_distance
from anabranch.seeds import generator
from anabranch.transport import bures, square_root


def normal(count, dimension, *names):
    return torch.randn(count, dimension, generator=generator(0, "frechet", *names), dtype=torch.float64)


def test_a_shift_costs_its_square_and_a_scale_the_square_of_the_deviations_difference():
    x = normal(200, 5, "x")
    step = torch.arange(5.0, dtype=torch.float64)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-10)
    assert frechet_distance(x, x + step) == pytest.approx(30)
    away = x - x.mean(0)
    total = float(torch.cov(x.T).trace())
    assert frechet_distance(away, 3 * away) == pytest.approx(4 * total)


def test_in_one_dimension_it_is_means_and_deviations():
    a, b = normal(50, 1, "a"), 2 * normal(70, 1, "b") + 1
    expected = (a.mean() - b.mean()) ** 2 + (a.std() - b.std()) ** 2
    assert frechet_distance(a, b) == pytest.approx(float(expected))


def test_it_is_the_formula_with_scipys_root_and_the_distance_between_gaussians():
    a = normal(400, 6, "a") @ normal(6, 6, "mix")
    b = normal(300, 6, "b") @ normal(6, 6, "other") + 1
    mean_a, mean_b, cov_a, cov_b = a.mean(0), b.mean(0), torch.cov(a.T), torch.cov(b.T)
    root = scipy.linalg.sqrtm((cov_a @ cov_b).numpy()).real
    expected = float((mean_a - mean_b).square().sum() + (cov_a + cov_b).trace()) - 2 * numpy.trace(root)
    assert frechet_distance(a, b) == pytest.approx(expected)
    assert frechet_distance(a, b) == pytest.approx(float(bures(mean_a, cov_a, mean_b, cov_b)))
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a))


def test_fewer_points_than_dimensions_are_exact_all_the_same():
    """Then tr (Σ_a^½ Σ_b Σ_a^½)^½ is the nuclear norm of the two sets' products, which no large matrix enters."""
    a, b = normal(10, 60, "a"), normal(12, 60, "b") + 0.3
    away_a, away_b = a - a.mean(0), b - b.mean(0)
    cross = torch.linalg.svdvals(away_a @ away_b.T).sum() / math.sqrt(9 * 11)
    spread = away_a.square().sum() / 9 + away_b.square().sum() / 11 - 2 * cross
    expected = float((a.mean(0) - b.mean(0)).square().sum() + spread)
    with pytest.warns(UserWarning, match="10 points in 60 dimensions .* singular"):
        assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)
    with pytest.warns(UserWarning):
        assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)


@pytest.mark.filterwarnings("ignore:A Fréchet distance from")
@pytest.mark.parametrize("counts", [(8, 10), (10, 8), (10, 200), (200, 10), (31, 10)])
def test_few_points_are_compared_by_a_factor_to_the_same_value(counts, tmp_path, monkeypatch):
    """Statistics from a file have no factor; those of few points have one, and no root of a large matrix is taken."""
    a, b = (normal(n, 60, "points", n) * torch.linspace(0.1, 2, 60).double() + n / 9 for n in counts)
    whole = []
    for number, one in enumerate((a, b)):
        FeatureStatistics.of(one).save(tmp_path / f"{number}.npz")
        whole.append(FeatureStatistics.load(tmp_path / f"{number}.npz"))
    assert all(one.factor is None for one in whole)
    expected = frechet_distance(*whole)
    sides = [FeatureStatistics.of(one) for one in (a, b)]
    assert [one.factor is not None for one in sides] == [n <= 30 for n in counts]
    monkeypatch.setattr(FeatureStatistics, "root", None)
    assert frechet_distance(*sides) == pytest.approx(expected, rel=1e-9)
    for one, other in zip(sides, whole, strict=True):
        torch.testing.assert_close(one.spectrum, other.spectrum)


def test_a_factor_is_kept_in_parts_until_points_are_many():
    x = normal(28, 60, "x")
    parts = FeatureStatistics.of(x[:9]).update(x[9:10]).merge(FeatureStatistics.of(x[10:25]))
    assert parts.factor is not None and len(parts.factor) == 25 + 2
    torch.testing.assert_close(parts.factor.T @ parts.factor, torch.cov(x[:25].T))
    moved = parts.to("meta")
    assert moved.factor is not None and moved.factor.device.type == "meta"
    assert parts.update(x[25:]).factor is None  # 28 points and 3 steps between parts
    torch.testing.assert_close(parts.covariance, torch.cov(x.T))


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_a_perfect_model_scores_the_bias(power):
    """Whatever the spectrum, once there are more points than dimensions."""
    scale = torch.arange(1.0, 61.0, dtype=torch.float64) ** (-power / 2)
    pairs = [(normal(600, 60, "a", draw) * scale, normal(300, 60, "b", draw) * scale) for draw in range(30)]
    found = numpy.array([frechet_distance(a, b) for a, b in pairs])
    many = FeatureStatistics.of(torch.cat([x for pair in pairs for x in pair]))
    expected = frechet_bias(many, 300) / (1 / 300 + 1 / many.count) * (1 / 300 + 1 / 600)
    assert abs(found.mean() - expected) < 3 * found.std() / 30**0.5 + 0.01 * expected
    assert frechet_bias(pairs[0][0], 300) == pytest.approx(expected, rel=0.15)


def test_the_bias_of_unit_covariance_is_that_of_the_mean_and_of_the_covariance():
    unit = torch.cat([torch.eye(3), -torch.eye(3)]) * math.sqrt(5 / 2)
    assert frechet_bias(unit, 12) == pytest.approx((3 + 3 * 4 / 4) * (1 / 12 + 1 / 6))


def test_few_points_are_warned_of_with_the_bias():
    a, b = normal(50, 40, "a"), normal(60, 40, "b")
    with pytest.warns(UserWarning, match=rf"by roughly {frechet_bias(a, 60):.3g} even for a perfect model"):
        frechet_distance(a, b)
    with pytest.warns(UserWarning, match=rf"by roughly {frechet_bias(a, 60):.3g} even"):
        frechet_distance(a, 9 * b)  # a perfect model spreads as real ones do
    with pytest.raises(UsageError, match="number of samples is 1"):
        frechet_bias(a, 1)


def test_only_few_points_are_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frechet_distance(normal(50, 3, "a"), normal(15, 3, "b"))
        with pytest.raises(UserWarning, match=r"from 14 points in 3 dimensions .* 1/n\. Compare"):
            frechet_distance(normal(50, 3, "a"), normal(14, 3, "b"))


def test_statistics_in_parts_are_those_of_the_whole():
    x = 1e4 + normal(101, 4, "x")
    parts = FeatureStatistics()
    for part in x.split([1, 60, 40]):
        parts.update(part)
    merged = FeatureStatistics.of(x[:30]).merge(FeatureStatistics()).merge(FeatureStatistics.of(x[30:]))
    for found in (parts, merged):
        assert found.count == 101
        torch.testing.assert_close(found.mean, x.mean(0), rtol=1e-14, atol=0)
        torch.testing.assert_close(found.covariance, torch.cov(x.T), rtol=1e-9, atol=1e-11)
    assert frechet_distance(parts, x) == pytest.approx(0, abs=1e-9)


def test_updating_leaves_the_features_and_the_merged_alone():
    x = normal(20, 2, "x")
    second = FeatureStatistics.of(x)
    FeatureStatistics().merge(second).update(x + 9)
    assert second.count == 20 and torch.equal(second.mean, x.mean(0))


def test_statistics_are_kept_in_a_file_that_other_tools_know(tmp_path):
    x = normal(30, 3, "x")
    FeatureStatistics.of(x).save(tmp_path / "real.npz")
    found = FeatureStatistics.load(tmp_path / "real.npz")
    assert found.count == 30 and frechet_distance(found, x) == pytest.approx(0, abs=1e-12)
    numpy.savez(tmp_path / "other.npz", mu=numpy.zeros(3), sigma=numpy.eye(3))
    with pytest.raises(DataError, match="does not say how many"):
        FeatureStatistics.load(tmp_path / "other.npz")
    assert FeatureStatistics.load(tmp_path / "other.npz", count=10).covariance.trace() == pytest.approx(3)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"mu": numpy.zeros(3)}, "does not hold mu and sigma"),
        ({"mu": numpy.zeros(3), "sigma": numpy.eye(2), "count": 4}, "must be"),
        ({"mu": numpy.full(2, numpy.nan), "sigma": numpy.eye(2), "count": 4}, "not finite"),
        ({"mu": numpy.array([{}]), "sigma": numpy.eye(2), "count": 4}, "does not hold mu and sigma"),
    ],
)
def test_files_that_are_no_statistics_are_refused(tmp_path, arrays, says):
    numpy.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=says):
        FeatureStatistics.load(tmp_path / "bad.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="does not hold mu and sigma"):
        FeatureStatistics.load(tmp_path / "bad.npz")


def test_the_bias_is_the_known_one_and_the_extrapolation_takes_it_away(tmp_path):
    """To N(0, I) itself, n samples are at d/n by their mean and, to first order, at d(d + 1)/4n by their covariance."""
    dimension, count = 16, 1500
    numpy.savez(tmp_path / "target.npz", mu=numpy.zeros(dimension), sigma=numpy.eye(dimension))
    target = FeatureStatistics.load(tmp_path / "target.npz", count=10**9)
    plain, better = [], []
    for draw in range(10):
        samples = normal(count, dimension, "draw", draw)
        plain.append(frechet_distance(target, samples))
        better.append(extrapolated_frechet(target, samples, generator(0, "parts", draw)).value)
    bias = (dimension + dimension * (dimension + 1) / 4) / count
    assert numpy.mean(plain) == pytest.approx(bias, rel=0.1)
    assert abs(numpy.mean(better)) < 0.2 * bias, better


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UsageError, match="one space"):
        frechet_distance(normal(20, 2, "a"), normal(20, 3, "b"))
    with pytest.raises(DataError, match="two at least"):
        frechet_distance(normal(1, 2, "a"), normal(20, 2, "b"))
    with pytest.raises(DataError, match="not finite"):
        frechet_distance(normal(20, 2, "a") * math.nan, normal(20, 2, "b"))
    with pytest.raises(DataError, match="No features were given"):
        _ = FeatureStatistics().mean
    with pytest.raises(UsageError, match="came after"):
        FeatureStatistics.of(normal(20, 2, "a")).update(normal(20, 3, "b"))
    with pytest.raises(UsageError, match="two different ones, from 2 to 20"):
        extrapolated_frechet(normal(50, 2, "a"), normal(20, 2, "b"), generator(0), sizes=[21, 5])
    with pytest.warns(UserWarning, match="no line in 1/n"):
        extrapolated_frechet(normal(50, 9, "a"), normal(20, 9, "b"), generator(0), sizes=[5, 20])


def test_a_reference_takes_its_root_once_and_distances_are_the_same(monkeypatch):
    from anabranch.metrics import _statistics

    taken = []

    def counted(covariance):
        taken.append(len(covariance))
        return square_root(covariance)

    monkeypatch.setattr(_statistics, "square_root", counted)
    real = normal(400, 6, "real") @ normal(6, 6, "mix")
    for first in (True, False):
        reference = FeatureStatistics.of(real)
        taken.clear()
        for draw in range(4):
            made = normal(300, 6, "made", draw) @ normal(6, 6, "other", draw) + draw
            pair = (reference, made) if first else (made, reference)
            expected = float(bures(real.mean(0), torch.cov(real.T), made.mean(0), torch.cov(made.T)))
            assert frechet_distance(*pair) == pytest.approx(expected, rel=1e-9)
        assert len(taken) == 1, "samples beside a reference must not have their root taken"
    made = FeatureStatistics.of(made)
    assert frechet_distance(made, reference) == pytest.approx(frechet_distance(reference, made), rel=1e-12)
    assert len(taken) == 1 and reference.has_root and not made.has_root


def test_a_root_is_forgotten_when_more_features_come():
    x, y = normal(100, 3, "x"), 5 * normal(100, 3, "y")
    found = FeatureStatistics.of(x)
    before = found.root
    found.update(y)
    assert not found.has_root
    torch.testing.assert_close(found.root @ found.root, torch.cov(torch.cat([x, y]).T))
    assert not torch.allclose(found.root, before)
    moved = found.to("meta")
    assert moved.has_root and moved.root.device.type == "meta" and found.to("cpu") is found
