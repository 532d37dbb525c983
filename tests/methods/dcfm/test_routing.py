"""Whose each term of eq. (12) is: the silo's own, or its peer's."""

import torch

from anabranch.flow.conditioning import single_masks
from anabranch.methods.dcfm._peers import Comparison, _met, peer_losses, routed
from anabranch.methods.experts import Example

AS_PRINTED = Comparison(single_masks(2), [0.7, 0.1, 0.1, 0.1])


def test_a_peer_is_only_asked_about_what_it_has_met_and_one_term_stays():
    generator = torch.Generator().manual_seed(0)
    met = torch.rand(5000, 3, generator=generator) < 0.5
    theirs = routed(met, generator)
    assert not bool((theirs[:, :3] & ~met).any())
    assert not bool(theirs.all(1).any())
    free = theirs[met.all(1)]
    assert 0.4 < float(free.float().mean()) < 0.5  # a coin each, less what must stay


def test_whether_a_term_is_own_tells_nothing_of_what_it_does_not_see():
    """∅ is own as often beside a peer that knows a row's outcomes as beside one that does not, and so is y_1
    whether or not its peer has met the second outcome: eq. (9) has the plain means of both."""
    both = torch.tensor([[True, True], [True, False]]).repeat(200_000, 1)
    theirs = routed(both, torch.Generator().manual_seed(0)).float()
    for term in (0, 2):
        assert abs(float(theirs[::2, term].mean() - theirs[1::2, term].mean())) < 0.006  # 5 deviations; was .04


def test_flow_matching_beside_a_peer_finds_the_mean_of_all_rows():
    """Velocities are 1 where the second attribute is 1, which is what the peer has met: ∅ and y_1 are at a half."""
    y = torch.stack([torch.zeros(200_000, dtype=torch.long), torch.arange(200_000) % 2], dim=1)
    met = torch.stack([torch.ones(200_000, dtype=torch.bool), y[:, 1] == 1], dim=1)
    theirs, zero = routed(met, torch.Generator().manual_seed(0)), lambda x, t, y: torch.zeros(len(x), 1)
    nothing = torch.zeros(200_000, 1)
    batch = Example(nothing, y[:, 1:].float(), nothing[:, 0], y, torch.zeros(1), torch.zeros(1), 0)
    for place in (0, 2):
        weight = [0.0, *(float(term == place) for term in range(3))]
        step = peer_losses(zero, [zero] * 3, batch, theirs, Comparison(single_masks(2), weight))
        # The mean square of 0 - u over a term's own rows is the share of ones among them.
        assert abs(float(step.losses.matching) - 0.5) < 0.006  # .52 if what is own depends on the other attribute


def test_outcomes_are_read_attribute_by_attribute():
    outcomes = torch.tensor([True, False, False, False, True])  # of sizes 2 and 3
    met = _met(outcomes, torch.tensor([[0, 2], [1, 0]]), (2, 3))
    assert met.tolist() == [[True, True], [False, False]]


def test_the_peer_of_each_term_is_asked_about_what_it_has_met():
    """The first peer has met the first attribute alone and the second the second: both speak, also in one row."""
    outcomes = torch.tensor([[True, True, False, False], [False, False, True, True], [False] * 4])
    met = _met(outcomes, torch.randint(2, (200, 2), generator=torch.Generator().manual_seed(0)), (2, 2))
    theirs = AS_PRINTED.routed(met, torch.Generator().manual_seed(0))
    assert theirs.any(0).tolist() == [True] * 3 and bool(theirs[:, :2].all(1).any())
    swapped = AS_PRINTED.routed(met[[1, 0, 2]], torch.Generator().manual_seed(0))
    assert swapped.any(0).tolist() == [False, False, True]
