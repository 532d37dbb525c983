"""Couplings by a potential, where the optimal potential is known.

From q0 = N(0, I) to its translate by s the optimal map is x0 ↦ x0 + s. At the minimum of ½‖x0 − x1‖² − f(x0) one has
∇f(x0) = x0 − x1 = −s, hence f(x0) = −s·x0, and the cost is ½‖s‖².
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from anabranch.coupling import BalancedPotential, EntropicPotential, GlobalPotential
from anabranch.data import Cloud, Points, shape
from anabranch.errors import UsageError
from anabranch.seeds import generator

SHIFT = torch.tensor([2.0, -1.0])
OPTIMUM = 2.5


def data(count=2000):
    x = shape("gaussian", 2).points(count, generator(0, "data"))
    x = (x - x.mean(0)) + SHIFT  # centred exactly, so that the optimum is known without sampling error
    return Points(x, torch.zeros(count, dtype=torch.long))


def optimal(x):
    return -(x @ SHIFT)


def call(coupling, what="draw", seed=0, size=128, points=None, source=None):
    method = getattr(coupling, what)
    return method(
        points or data(), source or shape("gaussian", 2), size, generator(seed, "own"), generator(seed, "shared")
    )


class Linear(nn.Module):
    """f(x) = a·x."""

    def __init__(self, slope):
        super().__init__()
        self.slope = nn.Parameter(slope.clone())

    def forward(self, x):
        return x @ self.slope


class TestGlobal:
    def test_with_the_optimal_potential_each_x1_takes_the_candidate_nearest_to_x1_less_the_shift(self):
        cloud = shape("gaussian", 2).points(400, generator(1))
        pairs = call(GlobalPotential(optimal, candidates=400), source=Cloud(cloud))
        distance = torch.cdist(pairs.x1 - SHIFT, cloud)
        assert torch.allclose((pairs.x0 - (pairs.x1 - SHIFT)).norm(dim=1), distance.min(1).values, atol=1e-4)

    def test_without_a_potential_it_is_the_nearest_candidate(self):
        cloud = shape("gaussian", 2).points(200, generator(1))
        pairs = call(GlobalPotential(lambda x: torch.zeros(len(x)), candidates=200), source=Cloud(cloud))
        assert torch.allclose((pairs.x0 - pairs.x1).norm(dim=1), torch.cdist(pairs.x1, cloud).min(1).values, atol=1e-4)

    def test_a_constant_in_the_potential_changes_nothing(self):
        one, other = (call(GlobalPotential(lambda x, c=c: optimal(x) + c)) for c in (0.0, 7.0))
        assert torch.equal(one.index0, other.index0)


DUALS = {
    "candidates": lambda f: GlobalPotential(f, candidates=1000),
    "descent": lambda f: GlobalPotential(f, candidates=1000, transform="descent", steps=8),
    "entropic": lambda f: EntropicPotential(f, candidates=1000, epsilon=0.01),
}


@pytest.mark.parametrize("name", DUALS)
class TestDual:
    def test_the_optimal_potential_reaches_the_cost_of_transport(self, name):
        values = [float(call(DUALS[name](optimal), "dual", seed, size=512)) for seed in range(8)]
        assert sum(values) / 8 == pytest.approx(OPTIMUM, rel=0.06)

    def test_a_constant_in_the_potential_changes_nothing(self, name):
        one, other = (float(call(DUALS[name](lambda x, c=c: optimal(x) + c), "dual")) for c in (0.0, 5.0))
        assert one == pytest.approx(other, abs=1e-4)

    def test_another_potential_stays_below(self, name):
        wrong = Linear(torch.zeros(2)).requires_grad_(False)
        better, worse = (
            sum(float(call(DUALS[name](f), "dual", seed, size=512)) for seed in range(4)) for f in (optimal, wrong)
        )
        assert worse < better - 1

    def test_ascending_on_its_gradient_finds_the_optimal_potential(self, name):
        potential = Linear(torch.zeros(2))
        optimizer = torch.optim.SGD(potential.parameters(), lr=0.3, maximize=True)
        for seed in range(40):
            optimizer.zero_grad()
            call(DUALS[name](potential), "dual", seed, size=256).backward()
            optimizer.step()
        assert (potential.slope.detach() + SHIFT).norm() < 0.3
        potential.requires_grad_(False)
        value = sum(float(call(DUALS[name](potential), "dual", seed, size=512)) for seed in range(100, 104)) / 4
        assert value == pytest.approx(OPTIMUM, rel=0.08)


class TestEntropic:
    def test_candidates_are_drawn_with_their_gibbs_weights(self):
        cloud, point = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
        points = Points(point, torch.zeros(2, dtype=torch.long))

        def potential(x):
            return 0.3 * x[:, 0]

        coupling, hits = EntropicPotential(potential, candidates=3, epsilon=0.5), torch.zeros(3)
        for seed in range(100):
            drawn = call(coupling, seed=seed, size=100, points=points, source=Cloud(cloud)).x0
            hits += (drawn[:, None] == cloud[None]).all(2).float().sum(0)
        weights = ((potential(cloud) - 0.5 * (cloud - point[0]).square().sum(1)) / 0.5).softmax(0)
        assert ((hits - 10_000 * weights) ** 2 / (10_000 * weights)).sum() < 25  # two degrees of freedom

    def test_as_epsilon_vanishes_it_becomes_the_hard_choice(self):
        hard, soft = (call(c) for c in (GlobalPotential(optimal, 300), EntropicPotential(optimal, 300, 1e-5)))
        assert torch.equal(hard.index1, soft.index1) and (hard.index0 == soft.index0).float().mean() > 0.97

    def test_a_larger_epsilon_blurs(self):
        def cost(epsilon):
            pairs = call(EntropicPotential(optimal, 300, epsilon), size=1000)
            return float((pairs.x0 - (pairs.x1 - SHIFT)).square().sum(1).mean())

        assert cost(0.01) < cost(0.3) < cost(10.0)


class TestBalanced:
    @pytest.mark.parametrize(("weight", "pool"), [(0.3, 100), (0.7, 43), (1.0, 30)])
    def test_the_pool_is_the_batch_over_the_weight(self, weight, pool):
        asked = []

        class Source:
            def points(self, count, draws):
                asked.append(count)
                return shape("gaussian", 2).points(count, draws)

        call(BalancedPotential(optimal, weight), size=30, source=Source())
        assert asked == [pool]

    @pytest.mark.parametrize("source", ["gaussian", "8gaussians", "uniform", "moons"])
    def test_holders_of_different_weight_look_into_one_pool(self, source):
        """The smaller pool is the beginning of the larger one, whatever the source."""
        small, large = (shape(source, 2).points(count, generator(0, "pool")) for count in (43, 100))
        assert torch.equal(small, large[:43])

    def test_two_holders_share_the_candidates_of_the_round_and_not_the_batch(self):
        def draw(seed):
            return BalancedPotential(optimal, 0.5).draw(
                data(), shape("gaussian", 2), 64, generator(seed, "own"), generator(0, "shared")
            )

        one, two = draw(1), draw(2)
        pool = shape("gaussian", 2).points(128, generator(0, "shared"))
        assert torch.equal(one.x0, pool[one.index0]) and torch.equal(two.x0, pool[two.index0])
        assert not torch.equal(one.index1, two.index1)

    def test_the_slope_of_the_dual_is_the_want_of_each_candidate(self):
        """With f a free number a candidate: 1/K − usage/B, so that f rises where nobody is."""
        values = torch.zeros(80, requires_grad=True)
        dual = call(BalancedPotential(lambda x: values, 0.4), "dual", size=32)
        dual.backward()
        used = torch.zeros(80)
        used[call(BalancedPotential(lambda x: values.detach(), 0.4), "draw", size=32).index0] = 1
        assert torch.allclose(values.grad, 1 / 80 - used / 32, atol=1e-6)

    @pytest.mark.parametrize(("most", "reach"), [(float("inf"), 320), (10.0, 320), (2.0, 64), (1.5, 48), (1.0, 32)])
    def test_no_more_of_the_pool_is_looked_at_than_it_may(self, most, reach):
        coupling = BalancedPotential(optimal, 0.1, most)
        assert coupling.reach(32) == reach
        assert int(call(coupling, size=32).index0.max()) < reach

    def test_the_fewer_it_may_look_at_the_fairer_a_sample_of_the_source_and_with_one_batch_all_are_taken(self):
        """Without a potential, points about (2, −1) take what is near to them: sources whose mean is off by so much."""
        nothing = BalancedPotential(lambda x: torch.zeros(len(x)), 0.05)
        off = [
            float(call(replace(nothing, most=most), size=64).x0.mean(0).norm()) for most in (float("inf"), 3.0, 1.25)
        ]
        assert off[0] > 1.5 > off[1] > 0.5 > off[2]
        taken = call(replace(nothing, most=1.0), size=64).index0
        assert taken.sort().values.tolist() == list(range(64))

    def test_a_potential_moves_holders_off_contested_candidates(self):
        """Candidates whose f is very low are left alone."""
        pairs = call(BalancedPotential(lambda x: torch.where(x[:, 0] > 0, -1e3, 0.0), 0.25), size=32)
        assert (pairs.x0[:, 0] <= 0).all()


def test_impossible_options_are_refused():
    for build in (lambda: GlobalPotential(optimal, 0), lambda: EntropicPotential(optimal, 0)):
        with pytest.raises(UsageError, match="pool of 0 candidates"):
            build()
    for epsilon in (0.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="positive epsilon"):
            EntropicPotential(optimal, epsilon=epsilon)
    for weight in (0.0, -0.5, 1.2, float("nan")):
        with pytest.raises(UsageError, match=r"\(0, 1\]"):
            BalancedPotential(optimal, weight)
    for most in (0.5, 0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="a batch needs one or more"):
            BalancedPotential(optimal, 0.5, most)
    with pytest.raises(UsageError, match="did you mean 'descent'"):
        GlobalPotential(optimal, transform="decent")
