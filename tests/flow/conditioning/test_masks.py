import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow.conditioning import NULL, Masking, masked, pair_masks, single_masks
from anabranch.seeds import generator


@pytest.mark.parametrize("k", [1, 2, 4])
def test_all_masks_and_their_probabilities(k):
    mask, weight = Masking(0.5, 0.3, 0.2).masks(k)
    assert mask.shape == (k + 2, k) and mask[0].all() and not mask[-1].any()
    assert torch.equal(mask[1:-1], torch.eye(k, dtype=torch.bool))
    torch.testing.assert_close(weight, torch.tensor([0.5, *[0.3 / k] * k, 0.2]))
    assert torch.equal(single_masks(k), mask[1:])


def test_drawn_masks_have_the_probabilities_of_eq_8():
    masking, count = Masking(0.5, 0.3, 0.2), 40_000
    drawn = masking.draw(count, 3, generator(0))
    assert drawn.shape == (count, 3) and torch.equal(drawn, masking.draw(count, 3, generator(0)))
    mask, weight = masking.masks(3)
    frequency = torch.stack([(drawn == each).all(dim=1).float().mean() for each in mask])
    torch.testing.assert_close(frequency, weight, atol=0.01, rtol=0)  # four standard errors
    assert frequency.sum().item() == pytest.approx(1)


def test_weights_must_be_probabilities():
    for weights in ((0.9, 0.2, 0.1), (0.5, 0.2, 0.2)):
        with pytest.raises(UsageError, match="must sum to one"):
            Masking(*weights)
    for weights in ((1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5), (float("inf"), 0.0, 0.0)):
        with pytest.raises(UsageError, match="are probabilities"):
            Masking(*weights)
    Masking(0.9, 0.06, 0.04)  # sums to one but for rounding
    for k in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="one attribute or more"):
            Masking().masks(k)


def test_a_masked_code_is_null_and_the_rest_stays():
    y = torch.tensor([[3, 1, 2], [NULL, 0, 4]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    assert masked(y, mask).tolist() == [[3, NULL, 2], [NULL, 0, NULL]]
    assert masked(y, mask[:, None]).shape == (2, 2, 3)


def test_pairs_are_pairs_each_equally_often():
    both, first, second, none = pair_masks(30_000, 4, generator(0))
    assert (first.sum(1) == 1).all() and (second.sum(1) == 1).all() and not none.any()
    assert torch.equal(both, first | second) and (both.sum(1) == 2).all()
    together = (both[:, :, None] & both[:, None]).float().mean(dim=0)
    off = together[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(off, torch.full((12,), 1 / 6), atol=0.01, rtol=0)
    with pytest.raises(UsageError, match="needs two"):
        pair_masks(5, 1, generator(0))
