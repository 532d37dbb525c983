"""A field that adds its attributes from a time on."""

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import NULL, AdditiveSince, composed, full_penalty, guided

SIZES = (3, 4)
SINCE = 0.6


@pytest.fixture
def field():
    return network("conditional-mlp", 2, seed=0, sizes=SIZES).double()


@pytest.fixture
def rows():
    """Points of all masks, at times on both sides."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    y = torch.stack([torch.arange(20) % 4 - 1, torch.arange(20) % 5 - 1], dim=1)
    return x, torch.linspace(0, 1, 20, dtype=torch.float64), y


def test_before_it_is_the_field_and_after_the_sum(field, rows):
    x, t, y = rows
    found, late = AdditiveSince(field, SINCE)(x, t, y), t >= SINCE
    torch.testing.assert_close(found[~late], field(x, t, y)[~late])
    torch.testing.assert_close(found[late], composed(field)(x, t, y)[late])
    whole = late & (y >= 0).all(dim=1)  # elsewhere both are the same
    assert whole.any() and (found - field(x, t, y))[whole].abs().min() > 1e-6


@pytest.mark.parametrize("time", [0.3, SINCE, 0.9])
def test_a_single_time_is_that_time_for_all(field, rows, time):
    x, _, y = rows
    partly = AdditiveSince(field, SINCE)
    times = torch.full((20,), time, dtype=torch.float64)
    torch.testing.assert_close(partly(x, times[0], y), partly(x, times, y))


def test_its_attributes_are_independent_from_then_on(field, rows):
    x, _, y = rows
    whole, partly = y.clamp_min(0), AdditiveSince(field, SINCE)
    assert full_penalty(partly, x, torch.tensor(0.8), whole) < 1e-28
    assert full_penalty(partly, x, torch.tensor(0.2), whole) > 1e-6


def test_guidance_sharpens_both_parts(field, rows):
    x, t, y = rows
    found, late = guided(AdditiveSince(field, SINCE), 3.0)(x, t, y), t >= SINCE
    torch.testing.assert_close(found[~late], guided(field, 3.0)(x, t, y)[~late])
    torch.testing.assert_close(found[late], composed(field, 3.0)(x, t, y)[late])


def test_what_is_not_given_has_no_effect_however_the_pass_rounds():
    def uneven(x, t, y):
        return x + torch.arange(len(x))[:, None]  # rows that differ by their place alone, as rounding may

    partly = AdditiveSince(uneven, SINCE)
    assert partly(torch.zeros(1, 1), torch.tensor(0.9), torch.tensor([[NULL, NULL]])).item() == 0
    assert partly(torch.zeros(1, 1), torch.tensor(0.9), torch.tensor([[NULL, 0]])).item() == 2


@pytest.mark.parametrize("since", [-0.1, 1.5, float("nan")])
def test_a_time_outside_is_refused(field, since):
    with pytest.raises(UsageError, match="in \\[0, 1\\]"):
        AdditiveSince(field, since)
