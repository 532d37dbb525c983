import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import Masking, all_masks, masked, pair_masks, stacked
from anabranch.seeds import generator


def batch(count=7):
    x = torch.randn(count, 2, generator=generator(0, "x"))
    y = torch.stack([torch.randint(size, (count,), generator=generator(0, size)) for size in (3, 4, 2)], dim=1)
    return x, torch.rand(count, generator=generator(0, "t")), y


@pytest.mark.parametrize("name", ["conditional-mlp", "additive-mlp"])
@pytest.mark.parametrize("single_time", [False, True])
def test_one_pass_equals_a_pass_a_mask(name, single_time):
    field = network(name, 2, seed=0, sizes=(3, 4, 2))
    x, t, y = batch()
    t = t[0] if single_time else t
    masks, _ = Masking().masks(3)
    for each in (masks, pair_masks(7, 3, generator(0))):  # the same for every row, and different from row to row
        expected = torch.stack([field(x, t, masked(y, mask)) for mask in each])
        torch.testing.assert_close(all_masks(field, x, t, y, each), expected)


def test_the_field_is_called_once_with_mask_after_mask():
    calls = []

    def field(x, t, y):
        calls.append((x, t, y))
        return x

    x, t, y = batch()
    masks, _ = Masking().masks(3)
    assert all_masks(field, x, t, y, masks).shape == (5, 7, 2)
    ((rows, times, codes),) = calls
    assert rows.shape == (35, 2) and times.shape == (35,) and codes.shape == (35, 3)
    for place in range(5):
        part = slice(7 * place, 7 * place + 7)
        assert torch.equal(rows[part], x) and torch.equal(times[part], t)
        assert torch.equal(codes[part], masked(y, masks[place]))


def test_what_does_not_fit_gets_a_sentence():
    x, t, y = batch()
    for points, codes, masks in ((x[:3], y, Masking().masks(3)[0]), (x, y, Masking().masks(2)[0]), (x, y[0], y > 0)):
        with pytest.raises(UsageError, match="do not fit together"):
            stacked(points, t, codes, masks)
