"""Costs against the direct formula, far from the origin and in chunks."""

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator
from anabranch.transport import half_squared_cost, nearest


def direct(x, y):
    return (x.double().flatten(1)[:, None] - y.double().flatten(1)[None]).square().sum(-1) / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2,), (3, 4, 4)])
def test_cost_is_the_direct_formula(dtype, shape):
    random = generator(0, "cost")
    x = torch.randn(7, *shape, generator=random, dtype=dtype)
    y = torch.randn(9, *shape, generator=random, dtype=dtype)
    cost = half_squared_cost(x, y)
    assert cost.shape == (7, 9) and cost.dtype == dtype
    torch.testing.assert_close(cost.double(), direct(x, y), rtol=1e-5, atol=1e-5)


def test_far_clouds_do_not_cancel():
    random = generator(1, "cost")
    x = torch.randn(50, 2, generator=random) + 1e4
    y = torch.randn(60, 2, generator=random) + 1e4
    torch.testing.assert_close(half_squared_cost(x, y).double(), direct(x, y), rtol=1e-4, atol=1e-4)
    assert (nearest(x, y).index == direct(x, y).argmin(1)).float().mean() > 0.95


def test_cost_is_never_negative():
    x = torch.randn(200, 64, generator=generator(2, "cost"))
    cost = half_squared_cost(x, x)
    assert (cost >= 0).all()
    assert cost.diagonal().max() < 1e-4


def test_cost_is_differentiable():
    x = torch.randn(3, 2, generator=generator(3, "cost"), dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 2, generator=generator(4, "cost"), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(half_squared_cost, (x, y))


@pytest.mark.parametrize("chunk", [None, 1, 7, 1000])
def test_nearest_is_the_row_minimum(chunk):
    random = generator(5, "cost")
    x = torch.randn(40, 3, generator=random, dtype=torch.float64)
    y = torch.randn(30, 3, generator=random, dtype=torch.float64)
    offset = torch.randn(30, generator=random, dtype=torch.float64)
    found = nearest(x, y, offset, chunk=chunk)
    expected = (direct(x, y) - offset).min(1)
    assert torch.equal(found.index, expected.indices)
    torch.testing.assert_close(found.value, expected.values)


def test_nearest_value_is_exact_for_its_index():
    random = generator(6, "cost")
    y = torch.randn(500, 3, generator=random) * 30
    found = nearest(y, y)
    assert torch.equal(found.index, torch.arange(500))
    assert torch.equal(found.value, torch.zeros(500))


def test_nearest_gradient_in_the_offset_is_minus_one_at_the_index():
    x, y = torch.zeros(2, 1), torch.tensor([[1.0], [5.0]])
    offset = torch.zeros(2, requires_grad=True)
    nearest(x, y, offset).value.sum().backward()
    assert torch.equal(offset.grad, torch.tensor([-2.0, 0.0]))


def test_refusals_are_sentences():
    with pytest.raises(DataError, match="one space"):
        half_squared_cost(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(DataError, match="no points"):
        half_squared_cost(torch.zeros(0, 3), torch.zeros(2, 3))
    with pytest.raises(DataError, match="floating point"):
        half_squared_cost(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
    with pytest.raises(DataError, match="agree"):
        half_squared_cost(torch.zeros(2, 3).double(), torch.zeros(2, 3))
    with pytest.raises(UsageError, match="one number for each"):
        nearest(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(2))
    with pytest.raises(UsageError, match="chunk"):
        nearest(torch.zeros(2, 3), torch.zeros(4, 3), chunk=0)
