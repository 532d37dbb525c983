"""Optimal transport inside a batch, against the exact solver on the same batch."""

import numpy as np
import ot
import pytest
import torch

from anabranch.coupling import Independent, MinibatchOT
from anabranch.data import Points, shape
from anabranch.errors import UsageError
from anabranch.seeds import generator

SIZE = 64


def data():
    x = torch.randn(200, 2, generator=generator(0, "data")) * 0.5 + torch.tensor([3.0, 1.0])
    return Points(x, torch.zeros(200, dtype=torch.long))


def draw(coupling, seed=0):
    return coupling.draw(data(), shape("gaussian", 2), SIZE, generator(seed, "own"), generator(seed, "shared"))


def cost(pairs):
    return float(0.5 * (pairs.x0 - pairs.x1).double().square().sum(1).mean())


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_pairs_cost_what_the_exact_plan_costs(seed):
    pairs = draw(MinibatchOT(), seed)
    weights = np.full(SIZE, 1 / SIZE)
    matrix = 0.5 * ot.dist(pairs.x0.double().numpy(), pairs.x1.double().numpy())
    assert cost(pairs) == pytest.approx(ot.emd2(weights, weights, matrix), rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
@pytest.mark.parametrize("replacement", [True, False])
def test_all_is_drawn_where_the_generator_is(solver, replacement):
    own = generator(0, "own", device="cuda")
    coupling = MinibatchOT(solver, replacement=replacement)
    pairs = coupling.draw(data().to("cuda"), shape("gaussian", 2), SIZE, own, generator(0, "shared"))
    assert len(pairs) == SIZE and all(value.is_cuda for value in vars(pairs).values())


@pytest.mark.parametrize("seed", range(3))
def test_it_pairs_the_same_batch_as_the_independent_coupling_but_cheaper(seed):
    """Equal generators draw equal batches: only the pairing differs."""
    loose, tight = draw(Independent(), seed), draw(MinibatchOT(), seed)
    assert torch.equal(loose.x0, tight.x0)
    assert torch.equal(loose.index1.sort().values, tight.index1.sort().values)
    assert cost(tight) < cost(loose)


def test_costs_are_ordered_exact_then_sharp_then_blunt_then_independent():
    means = [
        sum(cost(draw(coupling, seed)) for seed in range(20))
        for coupling in (MinibatchOT(), MinibatchOT("sinkhorn", 0.01), MinibatchOT("sinkhorn", 1.0), Independent())
    ]
    assert means == sorted(means)


def test_a_sharp_sinkhorn_is_nearly_exact():
    exact = sum(cost(draw(MinibatchOT(), seed)) for seed in range(10))
    assert sum(cost(draw(MinibatchOT("sinkhorn", 0.002), seed)) for seed in range(10)) == pytest.approx(exact, rel=0.02)


def test_pairs_drawn_with_replacement_are_pairs_of_the_optimal_plan():
    drawn, once = draw(MinibatchOT(replacement=True)), draw(MinibatchOT())
    partner = dict(zip(once.index0.tolist(), once.x1.tolist(), strict=True))
    assert all(partner[i] == x1 for i, x1 in zip(drawn.index0.tolist(), drawn.x1.tolist(), strict=True))


def test_unknown_solvers_and_an_epsilon_of_zero_are_refused():
    with pytest.raises(UsageError, match="did you mean 'exact'"):
        MinibatchOT("exakt")
    for epsilon in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="positive epsilon"):
            MinibatchOT("sinkhorn", epsilon)


class TestWithinLabels:
    @staticmethod
    def halves():
        """Points of label 0 on the left and of label 1, half as many, on the right."""
        label = (torch.arange(300) % 3 == 0).long()
        x = 0.5 * torch.randn(300, 2, generator=generator(0, "halves")) + torch.tensor([[-2.0, 0.0], [2.0, 0.0]])[label]
        return Points(x, label)

    def pairs(self, coupling, seed=0, size=SIZE):
        own, shared = generator(seed, "own"), generator(seed, "shared")
        return coupling.draw(self.halves(), shape("gaussian", 2), size, own, shared)

    def test_each_label_has_the_exact_plan_of_its_own_part(self):
        pairs = self.pairs(MinibatchOT(within=True))
        assert torch.equal(pairs.index0.sort().values, torch.arange(SIZE))
        for label in (0, 1):
            x0, x1 = (side[pairs.label == label].double().numpy() for side in (pairs.x0, pairs.x1))
            weights = np.full(len(x0), 1 / len(x0))
            found = 0.5 * ((x0 - x1) ** 2).sum(1).mean()
            assert found == pytest.approx(ot.emd2(weights, weights, 0.5 * ot.dist(x0, x1)), rel=1e-5)

    @pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
    @pytest.mark.parametrize("replacement", [True, False])
    def test_noise_is_the_sources_given_a_label(self, solver, replacement):
        """Mean and variance of x0 in the direction that divides the labels: 0 and 1, whichever label."""
        means, squares = {}, {}
        for within in (True, False):
            coupling = MinibatchOT(solver, replacement=replacement, within=within)
            drawn = [self.pairs(coupling, seed, 96) for seed in range(15)]
            x0 = torch.cat([one.x0[one.label == 1, 0] for one in drawn])
            means[within], squares[within] = float(x0.mean()), float(x0.square().mean())
        error = (2 if replacement else 1) / (15 * 32) ** 0.5  # a third of 96, fifteen times; fewer with replacement
        assert abs(means[True]) < 4 * error and abs(squares[True] - 1) < 4 * 1.5 * error
        assert means[False] > 0.5

    def test_one_label_is_the_whole_batch(self):
        one, other = draw(MinibatchOT()), draw(MinibatchOT(within=True))
        assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))
