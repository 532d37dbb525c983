from itertools import combinations

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import (
    Masking,
    all_masks,
    full_penalty,
    independence_gap,
    independence_penalty,
    masked,
    masked_penalty,
    pair_penalty,
)
from anabranch.seeds import generator

TIME = torch.tensor(0.5)


def codes(count, sizes, seed=0):
    return torch.stack([torch.randint(size, (count,), generator=generator(seed, i)) for i, size in enumerate(sizes)], 1)


def interaction(x, t, y):
    """x + Σ_i a_i + Σ_{i<j} (i + j + 1) a_i a_j, with a_i = y_i + 1, zero when null: its gaps are known."""
    a = (y + 1).to(x.dtype)
    pairs = sum((i + j + 1) * a[:, i] * a[:, j] for i, j in combinations(range(a.shape[1]), 2))
    return x + (a.sum(dim=1) + pairs)[:, None]


def test_the_gap_is_the_interaction():
    x, y = torch.randn(20, 3, generator=generator(0)).double(), codes(20, (3, 4, 2))
    velocities = all_masks(interaction, x, TIME, y, Masking().masks(3)[0])
    gap = independence_gap(velocities[0], velocities[1:-1], velocities[-1])
    a = (y + 1).double()
    expected = 2 * a[:, 0] * a[:, 1] + 3 * a[:, 0] * a[:, 2] + 4 * a[:, 1] * a[:, 2]
    torch.testing.assert_close(gap, expected[:, None].expand(-1, 3))
    torch.testing.assert_close(full_penalty(interaction, x, TIME, y), expected.square().mean())
    torch.testing.assert_close(masked_penalty(velocities), expected.square().mean())


def test_it_does_not_grow_with_the_dimension():
    y = codes(20, (3, 4))
    one, many = (full_penalty(interaction, torch.zeros(20, d).double(), TIME, y) for d in (1, 50))
    torch.testing.assert_close(one, many)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_random_pairs_have_the_mean_over_all_pairs_as_their_expectation(k):
    count = 60_000
    y = codes(1, [3] * k).expand(count, -1)
    x = torch.zeros(count, 1).double()
    a = (y[0] + 1).double()
    gaps = torch.stack([(i + j + 1) * a[i] * a[j] for i, j in combinations(range(k), 2)])
    drawn = pair_penalty(interaction, x, TIME, y, generator(3))
    error = gaps.square().std(correction=0) / count**0.5
    assert (drawn - gaps.square().mean()).abs() <= 4 * error + 1e-9


def test_two_attributes_are_their_only_pair():
    field = network("conditional-mlp", 2, seed=0, sizes=(3, 4)).double()
    x, y = torch.randn(9, 2, generator=generator(0)).double(), codes(9, (3, 4))
    torch.testing.assert_close(pair_penalty(field, x, TIME, y, generator(1)), full_penalty(field, x, TIME, y))


def test_a_pair_costs_four_rows_a_point():
    rows = []

    def field(x, t, y):
        rows.append(len(x))
        return x

    pair_penalty(field, torch.zeros(10, 2), TIME, codes(10, (3, 4, 2, 5, 6)), generator(0))
    full_penalty(field, torch.zeros(10, 2), TIME, codes(10, (3, 4, 2, 5, 6)))
    assert rows == [40, 70]


@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 2)])
def test_an_additive_field_has_none_and_another_has(sizes):
    x, y = torch.randn(9, 2, generator=generator(0)).double(), codes(9, sizes)
    additive = network("additive-mlp", 2, seed=0, sizes=sizes).double()
    by_passes = full_penalty(lambda *arguments: additive(*arguments), x, TIME, y)
    assert by_passes < 1e-28 and full_penalty(additive, x, TIME, y) < 1e-28
    assert full_penalty(network("conditional-mlp", 2, seed=0, sizes=sizes).double(), x, TIME, y) > 1e-10


def test_one_attribute_is_always_independent():
    field = network("conditional-mlp", 2, seed=0, sizes=(3,)).double()
    assert full_penalty(field, torch.randn(9, 2, generator=generator(0)).double(), TIME, codes(9, (3,))) < 1e-28


def test_terms_may_come_from_peers_and_only_ones_own_are_learnt():
    """Eq. (12) and (13): v^(a)(y) against v^(r_0) + Σ_i (v^(r_i)(y_i) − v^(r_0)), peers detached."""
    own, peer = (network("conditional-mlp", 2, seed=seed, sizes=(3, 4)).double() for seed in (0, 1))
    x, y = torch.randn(9, 2, generator=generator(0)).double(), codes(9, (3, 4))
    first, second, none = (masked(y, torch.tensor(mask)) for mask in ([True, False], [False, True], [False, False]))
    with torch.no_grad():
        lent, base = peer(x, TIME, second), peer(x, TIME, none)
    marginals = torch.stack([own(x, TIME, first), lent])
    penalty = independence_penalty(own(x, TIME, y), marginals, base)
    penalty.backward()
    expected = own(x, TIME, y) - (base + (own(x, TIME, first) - base) + (lent - base))
    torch.testing.assert_close(penalty, expected.square().mean())
    assert any(parameter.grad.abs().max() > 0 for parameter in own.parameters())
    assert all(parameter.grad is None for parameter in peer.parameters())


def test_wrong_shapes_get_a_sentence():
    with pytest.raises(UsageError, match=r"Give \(n, d\), \(k, n, d\) and \(n, d\)"):
        independence_gap(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(UsageError, match="marginal ones"):
        independence_gap(torch.zeros(3, 2), torch.zeros(2, 1, 2), torch.zeros(3, 2))
    with pytest.raises(UsageError, match="unconditional one"):
        independence_gap(torch.zeros(3, 2), torch.zeros(2, 3, 2), torch.zeros(3, 1))
