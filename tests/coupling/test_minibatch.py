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
