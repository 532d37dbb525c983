"""Semi-discrete transport in many dimensions, as of images: where duals start, and how far each of them steps."""

import pytest
import torch

from anabranch.seeds import generator
from anabranch.transport import SemiDual, half_squared_cost, step_at


def normal(seed, count, dimension):
    return torch.randn(count, dimension, generator=generator(seed, "semidiscrete"))


class TestTheStart:
    """In many dimensions long atoms would win everything; the start makes up for their length."""

    def atoms(self, count=300, dimension=200):
        directions = torch.nn.functional.normalize(normal(0, count, dimension), dim=1)
        return directions * torch.linspace(5, 25, count)[:, None] + 0.3

    def value(self, dual, noise):
        """The dual's value by these noises."""
        return float(dual.lookup(noise).value.double().mean() + (dual.masses * dual.duals).sum())

    def starved(self, dual, noise):
        return float((torch.bincount(dual.lookup(noise).index, minlength=len(dual.atoms)) == 0).double().mean())

    def test_nearly_all_atoms_win_where_few_did_and_the_dual_is_higher(self):
        x = self.atoms()
        zero, dual = (SemiDual.start(x, torch.full((300,), 1 / 300)) for _ in range(2))
        dual.begin(normal(1, 1024, 200))
        noise = normal(2, 6000, 200)
        assert self.starved(zero, noise) > 0.7 and self.starved(dual, noise) < 0.05
        assert self.value(dual, noise) > self.value(zero, noise)
        lengths = (x - x.mean(0)).norm(dim=1)
        assert lengths[dual.lookup(noise).index].mean() == pytest.approx(float(lengths.mean()), rel=0.05)

    def test_a_source_that_is_elsewhere_changes_nothing(self):
        """Moving the source adds a linear term to the optimal dual, and to the start."""
        x, noise = self.atoms(), normal(2, 6000, 200)
        dual = SemiDual.start(x, torch.full((300,), 1 / 300))
        dual.begin(normal(1, 4096, 200) + 4)
        assert self.starved(dual, noise + 4) < 0.05

    def test_holders_that_start_alone_are_on_one_height(self):
        x, noise = self.atoms(), normal(1, 1024, 200)
        halves = [SemiDual.start(part, torch.full((150,), 1 / 300)) for part in (x[:150], x[150:])]
        for half in halves:
            half.begin(noise)
        fresh = normal(2, 6000, 200)
        values = torch.stack([half.lookup(fresh).value for half in halves])
        assert 0.3 < float((values[0] < values[1]).double().mean()) < 0.7

    def test_it_is_for_many_dimensions_and_for_duals_that_have_not_moved(self):
        flat = SemiDual.start(normal(0, 50, 2), torch.full((50,), 1 / 50))
        flat.begin(normal(1, 256, 2))
        assert not flat.duals.any()
        dual = SemiDual.start(self.atoms(), torch.full((300,), 1 / 300))
        dual.begin(normal(1, 1024, 200))
        before = dual.duals.clone()
        dual.begin(normal(3, 1024, 200))
        assert torch.equal(dual.duals, before)

    @pytest.mark.parametrize("noise", [normal(1, 1, 200), torch.zeros(8, 200)], ids=["one noise", "no spread"])
    def test_poor_noises_leave_finite_duals(self, noise):
        dual = SemiDual.start(self.atoms(), torch.full((300,), 1 / 300))
        dual.begin(noise)
        assert bool(dual.duals.isfinite().all())


class TestStepsInManyDimensions:
    """Every atom, and a holder as a whole, moves by a step of its own size."""

    def holder(self, masses):
        dual = SemiDual.start(normal(0, len(masses), 100), torch.tensor(masses, dtype=torch.float64))
        dual.unit = 3.0
        return dual

    def test_a_share_that_is_off_by_chance_moves_its_dual_by_a_unit_however_small_it_is(self):
        masses, count = [0.5, 0.4996, 0.0003, 0.0001], 100
        off = torch.tensor([0.0, 0.0, 0.0003, -0.0001], dtype=torch.float64).sign()
        dual = self.holder(masses)
        wins = (dual.masses - off * (dual.masses / count).sqrt()) * count
        dual.ascend(wins, count, 0.5, average=False)
        whole = float((dual.masses - wins / count).sum())  # the holder has all mass, and moves by what is left over
        assert torch.allclose(dual.duals, 0.5 * 3.0 * (off + whole))

    def test_a_share_that_many_noises_tell_moves_by_what_is_missing_of_it(self):
        dual = self.holder([0.25] * 4)
        dual.ascend(torch.tensor([4000, 3000, 2000, 1000]), 10_000, 1.0, average=False)
        assert torch.allclose(dual.duals, 3.0 * torch.tensor([-0.6, -0.2, 0.2, 0.6], dtype=torch.float64))

    def test_a_holder_that_won_too_little_rises_as_one(self):
        dual = self.holder([0.05] * 4)  # a fifth of the mass, and a tenth of the noises
        dual.ascend(torch.full((4,), 250), 10_000, 1.0, average=False)
        assert torch.allclose(dual.duals, torch.full((4,), 3.0 * (0.5 + 0.5), dtype=torch.float64))

    def test_steps_fall_like_the_two_thirds_power_and_in_a_plane_in_equal_ratios(self):
        wide = [step_at(number, 100, 6.0, 0.01, 65) for number in (1, 8, 27)]
        assert wide == pytest.approx([1, 1 / 4, 1 / 9])
        assert [step_at(number, 3, 4.0, 1.0, 64) for number in (1, 2, 3)] == pytest.approx([4, 2, 1])

    def test_the_unit_is_the_distance_of_the_two_best_scores(self):
        x, noise = normal(0, 400, 300) * 2, normal(1, 1000, 300)
        dual = SemiDual.start(x, torch.full((400,), 1 / 400))
        dual.begin(noise)
        best = (dual.duals - half_squared_cost(noise, x)).topk(2, dim=1).values
        assert dual.unit == pytest.approx(float((best[:, 0] - best[:, 1]).mean()), rel=0.25)

    @pytest.mark.parametrize("count", [1, 7])
    def test_an_atom_alone_and_atoms_that_are_alike_have_a_unit(self, count):
        dual = SemiDual.start(torch.full((count, 100), 1.1), torch.full((count,), 0.01))
        dual.begin(normal(1, 64, 100))
        assert 1 < dual.unit < 10

    def test_a_fit_uses_every_atom_alike(self):
        """χ² of the shares, less what counting makes of it. The steps of a plane leave 0.2 here with as many noises."""
        near, x = torch.rand(1000, 1, generator=generator(7)), normal(1, 1000, 200)
        x = 2 * normal(5, 10, 200).repeat(100, 1) + 1.5 * near * x  # ten kinds, whose atoms differ more or less
        dual, draws = SemiDual.start(x, torch.full((1000,), 1 / 1000)), generator(2)
        dual.fit(lambda count: torch.randn(count, 200, generator=draws), 200, 256, first=6.0, last=0.01)
        usage = torch.bincount(dual.lookup(normal(4, 40_000, 200), average=True).index, minlength=1000) / 40_000
        assert float((usage - 1e-3).square().sum() * 1000 - 999 / 40_000) < 0.06
        assert float((usage == 0).double().mean()) < 0.01
