"""The pool of candidates: the same for all holders of a round, wherever and however many of them it is drawn by."""

import pytest
import torch

from anabranch.coupling import BalancedPotential, Precise, Stream, pairs_together, potential_duals
from anabranch.coupling._pool import BY_NUMBER, shared_points
from anabranch.data import Cloud, Points, shape
from anabranch.seeds import generator

CPU = torch.device("cpu")
MANY = BY_NUMBER + 44
WEIGHTS = (0.2, 0.5, 0.3)


def sources():
    cloud = torch.randn(90, 3, generator=generator(0, "cloud"))
    many = shape("gaussian", MANY)
    return {"few": shape("moons"), "many": many, "precise": Precise(many, torch.float64), "cloud": Cloud(cloud)}


def holders():
    return [
        Points(torch.randn(40, MANY, generator=generator(number, "holder")), torch.zeros(40).long())
        for number in range(3)
    ]


def owns():
    return [generator(number, "own") for number in range(3)]


def potential(x):
    return 30 * x[:, 0]


class TestPoints:
    @pytest.mark.parametrize("name", sources())
    def test_whoever_asks_for_fewer_gets_the_beginning(self, name):
        source = sources()[name]
        few, all_of_them = (shared_points(source, count, generator(1), CPU) for count in (13, 80))
        assert torch.equal(few, all_of_them[:13]) and len(all_of_them.unique(dim=0)) == 80

    @pytest.mark.parametrize("name", sources())
    def test_rounds_have_pools_of_their_own(self, name):
        source = sources()[name]
        one, other = (shared_points(source, 40, generator(seed), CPU) for seed in (1, 2))
        assert not torch.equal(one, other)

    def test_many_numbers_are_those_of_a_stream(self):
        """Which gives the same on every device; the shared generator only chooses the seed."""
        seed = int(torch.randint(2**63 - 1, (), generator=generator(1)))
        wanted = Stream(shape("gaussian", MANY), seed).points(torch.arange(30))
        assert torch.equal(shared_points(shape("gaussian", MANY), 30, generator(1), CPU), wanted)

    @pytest.mark.parametrize("name", ["few", "cloud"])
    def test_few_numbers_are_the_generators(self, name):
        source = sources()[name]
        assert torch.equal(shared_points(source, 30, generator(1), CPU), source.points(30, generator(1)))

    def test_precise_ones_are_the_same_in_another_type(self):
        plain, precise = (shared_points(sources()[name], 30, generator(1), CPU) for name in ("many", "precise"))
        assert precise.dtype == torch.float64 and torch.equal(plain.double(), precise)


class TestHolders:
    def couplings(self):
        return [BalancedPotential(potential, weight) for weight in WEIGHTS]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_all_take_from_one_pool_what_each_would_take_alone(self, workers):
        source = shape("gaussian", MANY)
        found = pairs_together(self.couplings(), holders(), source, 16, owns(), generator(7), workers)
        pool = shared_points(source, 80, generator(7), CPU)
        for coupling, data, own, pairs in zip(self.couplings(), holders(), owns(), found, strict=True):
            alone = coupling.draw(data, source, 16, own, generator(7))
            assert torch.equal(pairs.x0, alone.x0) and torch.equal(pairs.x1, alone.x1)
            assert torch.equal(pairs.x0, pool[pairs.index0]) and len(pairs.index0.unique()) == 16

    def test_it_is_drawn_once_for_all(self):
        asked = []

        class Source:
            def points(self, count, draws):
                asked.append(count)
                return torch.randn(count, MANY, generator=draws)

        pairs_together(self.couplings(), holders(), Source(), 16, owns(), generator(7))
        potential_duals(self.couplings(), holders(), Source(), 16, owns(), generator(7))
        assert asked == [80, 80]  # 16 / 0.2, for pairs and for duals

    @pytest.mark.parametrize("workers", [1, 3])
    def test_duals_are_those_of_each_alone(self, workers):
        source = shape("gaussian", MANY)
        together = potential_duals(self.couplings(), holders(), source, 16, owns(), generator(7), workers)
        members = zip(self.couplings(), holders(), owns(), strict=True)
        alone = [coupling.dual(data, source, 16, own, generator(7)) for coupling, data, own in members]
        assert torch.equal(together, torch.stack(alone))

    @pytest.mark.parametrize("workers", [1, 3])
    def test_duals_are_those_of_the_pairs(self, workers):
        """mean f over the pool + mean c − f over the pairs, which are assigned under c − f."""
        source = shape("gaussian", MANY)
        found = potential_duals(self.couplings(), holders(), source, 16, owns(), generator(7), workers)
        pairs = pairs_together(self.couplings(), holders(), source, 16, owns(), generator(7))
        for value, coupling, one in zip(found, self.couplings(), pairs, strict=True):
            pool = shared_points(source, coupling.reach(16), generator(7), CPU)
            moved = (one.x0 - one.x1).square().sum(1) / 2 - potential(one.x0)
            torch.testing.assert_close(value, potential(pool).mean() + moved.mean(), rtol=1e-5, atol=1e-3)
