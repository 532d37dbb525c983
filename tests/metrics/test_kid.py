"""KID: the double loop, moments by hand, around zero for equal distributions with an error that is one."""

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import kernel_distance
from anabranch.seeds import generator


def normal(count, dimension, *names):
    return torch.randn(count, dimension, generator=generator(0, "kid", *names), dtype=torch.float64)


def double_loop(x, y):
    def kernel(a, b):
        return (float(a @ b) / len(a) + 1) ** 3

    def own(z):
        pairs = [kernel(z[i], z[j]) for i in range(len(z)) for j in range(len(z)) if i != j]
        return sum(pairs) / len(pairs)

    cross = [kernel(a, b) for a in x for b in y]
    return own(x) + own(y) - 2 * sum(cross) / len(cross)


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_it_is_the_double_loop_in_every_block(chunk):
    """Which points make a block is drawn anew here, by the same generator: first the real ones, then the others."""
    x, y = normal(14, 3, "x"), normal(9, 3, "y") + 0.5
    draws = generator(1)
    first, second = (torch.randperm(count, generator=draws) for count in (14, 9))
    values = torch.tensor([double_loop(x[first[i : i + 7]], y[second[j : j + 4]]) for i, j in ((0, 0), (7, 4))])
    found = kernel_distance(x, y, generator(1), blocks=2, chunk=chunk)
    assert found.value == pytest.approx(float(values.mean()), rel=1e-6)
    assert found.error == pytest.approx(float((values[0] - values[1]).abs() / 2), rel=1e-5)


def test_a_shift_is_the_squared_difference_of_three_moments():
    """In one dimension (xy + 1)³ makes MMD² = 3 Δ₁² + 3 Δ₂² + Δ₃², Δ_k = E yᵏ − E xᵏ; for N(s, 1): s, s², s³ + 3s."""
    shift = 0.5
    expected = 3 * shift**2 + 3 * shift**4 + (shift**3 + 3 * shift) ** 2
    found = kernel_distance(normal(12_000, 1, "real"), normal(10_000, 1, "made") + shift, generator(0), blocks=20)
    assert abs(found.value - expected) < 3 * found.error and found.error < 0.1 * expected


def test_equal_distributions_are_around_zero_within_the_error():
    found = [
        kernel_distance(normal(1500, 8, "x", draw), normal(1000, 8, "y", draw), generator(draw)) for draw in range(40)
    ]
    values, errors = (torch.tensor([getattr(one, name) for one in found]) for name in ("value", "error"))
    assert abs(float(values.mean())) < 3 * float(values.std()) / 40**0.5
    assert 10 < int((values < 0).sum()) < 35, values
    assert float(errors.mean()) == pytest.approx(float(values.std()), rel=0.4)


def test_the_order_of_samples_does_not_enter_the_error():
    """Sorted samples, as of classes one after the other, would make blocks that differ wildly."""
    x, y = normal(400, 2, "x"), normal(400, 2, "y")
    mixed = kernel_distance(x, y, generator(0))
    by_order = kernel_distance(x[x[:, 0].argsort()], y[y[:, 0].argsort()], generator(0))
    assert by_order.error < 3 * mixed.error


def test_what_has_no_blocks_is_refused():
    for blocks in (1, 5):
        with pytest.raises(UsageError, match=f"{blocks} blocks .* 20 real and 9 generated .* from 2 to 4"):
            kernel_distance(normal(20, 2, "x"), normal(9, 2, "y"), generator(0), blocks)
    with pytest.raises(UsageError, match="one space"):
        kernel_distance(normal(20, 2, "x"), normal(20, 3, "y"), generator(0))
    with pytest.raises(DataError, match="not finite"):
        kernel_distance(normal(20, 2, "x"), normal(20, 2, "y") * torch.inf, generator(0))
