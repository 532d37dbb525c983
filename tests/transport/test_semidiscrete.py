"""Semi-discrete duals against the closed form on the line, brute force in float64, and the exact solver."""

from itertools import pairwise

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import UsageError
from anabranch.seeds import generator
from anabranch.transport import SemiDual, bisect, half_squared_cost, lookup, step_at
from anabranch.transport._atoms import Atoms, rounded_products


def normal(seed, count, dimension=2, dtype=torch.float32):
    return torch.randn(count, dimension, generator=generator(seed, "semidiscrete"), dtype=dtype)


def brute_force(noise, atoms, duals):
    noise, atoms = noise.double(), atoms.double()
    scores = 0.5 * (noise[:, None] - atoms[None]).square().sum(2) - duals.double()
    return scores.min(1)


def dual_value(noise, atoms, duals, masses):
    return float(brute_force(noise, atoms, duals).values.mean() + (duals * masses).sum())


class TestBisect:
    @pytest.mark.parametrize("count", [1, 2, 7, 8, 100, 257])
    @pytest.mark.parametrize("smallest", [1, 4, 20])
    def test_groups_of_a_level_differ_by_at_most_one_and_respect_the_smallest(self, count, smallest):
        levels = bisect(normal(0, count), smallest)
        for depth, label in enumerate(levels):
            sizes = torch.bincount(label)
            assert len(label) == count and len(sizes) == 2**depth
            assert int(sizes.max() - sizes.min()) <= 1
            assert depth == 0 or int(sizes.min()) >= smallest

    @pytest.mark.parametrize("count", [30, 100, 257])
    def test_it_stops_only_when_a_further_halving_would_leave_too_few(self, count):
        finest = torch.bincount(bisect(normal(0, count), 4)[-1])
        assert int(finest.min()) // 2 < 4

    def test_each_level_divides_the_one_before(self):
        levels = bisect(normal(1, 200), 3)
        for coarse, fine in pairwise(levels):
            parents = [set(coarse[fine == group].tolist()) for group in range(int(fine.max()) + 1)]
            assert all(len(parent) == 1 for parent in parents)

    def test_cuts_run_along_the_widest_axis(self):
        x = normal(2, 64) * torch.tensor([1.0, 50.0])
        halves = bisect(x, 32)[-1]
        assert x[halves == 0, 1].max() <= x[halves == 1, 1].min()


class TestLookup:
    @pytest.mark.parametrize("dimension", [1, 2, 17])
    def test_is_the_brute_force_minimum(self, dimension):
        noise, atoms = normal(0, 700, dimension), normal(1, 300, dimension)
        duals = normal(2, 300, 1, torch.float64)[:, 0]
        found, exact = lookup(noise, atoms, duals), brute_force(noise, atoms, duals)
        assert torch.allclose(found.value.double(), exact.values, atol=1e-5)
        assert (found.index == exact.indices).float().mean() > 0.995  # float32 may break a near tie the other way

    def test_clouds_far_from_the_origin_lose_no_digits(self):
        noise, atoms = normal(0, 500) + 1e4, normal(1, 300) + 1e4
        duals = normal(2, 300, 1, torch.float64)[:, 0]
        found, exact = lookup(noise, atoms, duals), brute_force(noise, atoms, duals)
        assert torch.allclose(found.value.double(), exact.values, atol=1e-5)
        assert (found.index == exact.indices).float().mean() > 0.99

    def test_atoms_far_from_the_noise_keep_the_relative_precision_of_float32(self):
        noise, atoms = normal(0, 500), normal(1, 300) + 1e4
        duals = torch.zeros(300, dtype=torch.float64)
        found, exact = lookup(noise, atoms, duals), brute_force(noise, atoms, duals)
        assert ((found.value.double() - exact.values) / exact.values).abs().max() < 1e-6

    def test_the_value_belongs_to_the_index(self):
        noise, atoms, duals = normal(0, 300), normal(1, 50), normal(2, 50, 1, torch.float64)[:, 0]
        found = lookup(noise, atoms, duals)
        there = 0.5 * (noise - atoms[found.index]).double().square().sum(1) - duals[found.index]
        assert torch.allclose(found.value.double(), there, atol=1e-6) and found.value.dtype == torch.float32

    def test_does_not_depend_on_how_many_are_asked_at_once(self):
        noise, atoms, duals = normal(0, 513), normal(1, 50), torch.zeros(50, dtype=torch.float64)
        together = lookup(noise, atoms, duals).value
        assert torch.equal(together, torch.cat([lookup(part, atoms, duals).value for part in noise.split(100)]))


class TestAtoms:
    """Made ready once, for duals that change; on a GPU by another way, which a CPU can go too."""

    def test_whatever_the_duals_they_are_looked_up_as_by_brute_force(self):
        noise, x = normal(0, 300, 9) + 5, normal(1, 200, 9) + 5
        for ready in (Atoms(x), Atoms(x, gpu=True)):
            for seed in (2, 3):  # the second duals leave nothing of the first
                duals = normal(seed, 200, 1, torch.float64)[:, 0]
                found, exact = ready.lookup(noise, duals), brute_force(noise, x, duals)
                torch.testing.assert_close(found.value.double(), exact.values, rtol=1e-5, atol=1e-5)
                assert (found.index == exact.indices).float().mean() > 0.99

    def test_a_dual_looks_up_its_own_duals_and_average_as_they_come_to_be(self):
        dual, noise = SemiDual.start(normal(0, 60), torch.full((60,), 1 / 60)), normal(1, 256)
        for number in range(3):
            found = dual.lookup(noise)
            dual.ascend(torch.bincount(found.index, minlength=60), 256, 1.0, average=number > 0)
            for average, duals in ((False, dual.duals), (True, dual.average)):
                mine, fresh = dual.lookup(noise, average), lookup(noise, dual.atoms, duals)
                assert torch.equal(mine.index, fresh.index) and torch.equal(mine.value, fresh.value)

    @pytest.mark.parametrize("chunk", [1, 7 * 200])
    def test_a_gpu_takes_noises_in_parts(self, monkeypatch, chunk):
        noise, x, duals = normal(0, 50, 9), normal(1, 200, 9), torch.zeros(200, dtype=torch.float64)
        whole = Atoms(x, gpu=True).lookup(noise, duals)
        monkeypatch.setattr("anabranch.transport._atoms.CHUNK_NUMBERS", chunk)
        monkeypatch.setattr("anabranch.transport._atoms.ON_A_GPU", 1)
        parts = Atoms(x, gpu=True).lookup(noise, duals)
        assert torch.equal(whole.index, parts.index) and torch.equal(whole.value, parts.value)

    def test_only_where_asked_for_products_are_rounded(self, monkeypatch):
        seen, addmm = [], torch.addmm

        def noted(*rest, **options):
            seen.append(torch.get_float32_matmul_precision())
            return addmm(*rest, **options)

        monkeypatch.setattr(torch, "addmm", noted)
        ready, noise, before = Atoms(normal(1, 20), gpu=True), normal(0, 5), torch.get_float32_matmul_precision()
        for rough in (True, False):
            ready.lookup(noise, torch.zeros(20, dtype=torch.float64), rough)
        assert seen == ["high", before] and torch.get_float32_matmul_precision() == before

    def test_moving_duals_are_looked_up_roughly_and_the_average_is_not(self):
        dual, seen = SemiDual.start(normal(0, 10), torch.full((10,), 0.1)), []
        ready = Atoms(dual.atoms)
        ready.lookup = lambda noise, duals, rough=False: seen.append((duals is dual.average, rough))
        dual.__dict__["_ready"] = ready
        dual.lookup(normal(1, 5))
        dual.lookup(normal(1, 5), average=True)
        assert seen == [(False, True), (True, False)]

    def test_the_last_thread_to_leave_puts_the_switch_back(self):
        before = torch.get_float32_matmul_precision()
        one, other = rounded_products(), rounded_products()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)  # the one that found it as it was
        assert torch.get_float32_matmul_precision() == "high"
        other.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(ZeroDivisionError), rounded_products():
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == before

    def test_numbers_of_eleven_bits_rarely_choose_another_atom(self):
        """What a GPU then does, done by hand. Where it chooses another one, that is hardly dearer."""
        x, noise = normal(1, 3000, 768) / 2, normal(0, 400, 768)
        duals = 20 * normal(2, 3000, 1, torch.float64)[:, 0]
        precise = lookup(noise, x, duals)
        scores = x.square().sum(1) / 2 - duals.float() - eleven_bits(noise) @ eleven_bits(x).T
        rough = scores.argmin(1)
        assert (rough != precise.index).float().mean() < 0.01
        value = 0.5 * (noise - x[rough]).square().sum(1) - duals[rough]
        assert (value - precise.value).max() < 0.05 and precise.value.std() > 5


def eleven_bits(x):
    """Each rounded to the nearest number whose mantissa has ten bits and a leading one: TF32."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class TestTheLine:
    """Uniform source on [0, 1], n sorted atoms of mass 1/n: cell k is [k/n, (k+1)/n], whatever the atoms are."""

    atoms = torch.tensor([-0.7, 0.05, 0.1, 0.9, 2.0])[:, None]

    def closed_form(self):
        x = self.atoms[:, 0].double()
        border = torch.arange(1, len(x), dtype=torch.float64) / len(x)
        rises = 0.5 * (border - x[1:]) ** 2 - 0.5 * (border - x[:-1]) ** 2
        return torch.cat([torch.zeros(1, dtype=torch.float64), rises.cumsum(0)])

    def grid(self):
        return (torch.arange(1000) + 0.5)[:, None] / 1000

    def test_optimal_duals_cut_the_interval_into_equal_cells(self):
        cell = lookup(self.grid(), self.atoms, self.closed_form()).index
        assert torch.equal(cell, (self.grid()[:, 0] * 5).long())

    def test_fitting_finds_these_duals(self):
        dual, draws = SemiDual.start(self.atoms, torch.full((5,), 0.2)), generator(0)
        dual.fit(lambda count: torch.rand(count, 1, generator=draws), 600, 1000, first=3.0, last=0.01)
        exact = self.closed_form()
        error = (dual.average - dual.average.mean()) - (exact - exact.mean())
        assert error.abs().max() < 5e-3
        cell = lookup(self.grid(), self.atoms, dual.average).index
        assert (cell != (self.grid()[:, 0] * 5).long()).float().mean() < 0.02


@pytest.fixture(scope="module")
def fitted():
    atoms = normal(5, 200) @ torch.tensor([[1.3, 0.5], [0.0, 0.5]]) + 1
    return fit(atoms, rounds=1500, last=0.02)


def fit(atoms, rounds, last, shift=0.0):
    dual, draws = SemiDual.start(atoms, torch.full((len(atoms),), 1 / len(atoms))), generator(6)
    dual.fit(lambda count: torch.randn(count, 2, generator=draws) + shift, rounds, 1024, first=3.0, last=last)
    return dual


class TestFit:
    def test_reaches_the_exact_dual(self, fitted):
        noise = normal(7, 8000)
        cost = half_squared_cost(noise.double(), fitted.atoms.double()).numpy()
        exact = ot.emd2(np.full(8000, 1 / 8000), np.full(200, 1 / 200), cost, numItermax=10**6)
        reached = dual_value(noise, fitted.atoms, fitted.average, fitted.masses)
        assert 0.997 * exact < reached <= exact + 1e-6

    def test_uses_every_atom_alike(self, fitted):
        usage = torch.bincount(fitted.lookup(normal(8, 200_000), average=True).index, minlength=200) / 200_000
        assert 0.5 * (usage - 1 / 200).abs().sum() < 0.025  # total variation; counting alone makes about 0.013
        assert usage.min() > 0.7 / 200 and usage.max() < 1.3 / 200

    def test_where_steps_stay_large_the_average_beats_the_last_iterate(self):
        dual, noise = fit(normal(5, 50), rounds=200, last=1.0), normal(9, 20_000)
        average, last = (dual_value(noise, dual.atoms, duals, dual.masses) for duals in (dual.average, dual.duals))
        assert average > last

    def test_duals_do_not_depend_on_where_the_origin_is(self):
        here, there = fit(normal(1, 60), 50, 0.1), fit(normal(1, 60) + 64.0, 50, 0.1, shift=64.0)
        assert torch.allclose(here.average, there.average, atol=1e-3)


class TestAscend:
    def test_excess_usage_lowers_and_want_raises(self):
        dual = SemiDual.start(normal(0, 6), torch.full((6,), 1 / 6))
        dual.ascend(torch.tensor([600, 0, 0, 0, 0, 0]), 600, 1.0, average=False)
        assert dual.duals[0] < 0 < dual.duals[1:].min()

    def test_with_all_mass_accounted_for_a_small_set_moves_by_its_residuals(self):
        dual = SemiDual.start(normal(0, 4), torch.full((4,), 0.25))
        dual.ascend(torch.tensor([40, 30, 20, 10]), 100, 2.0, average=False)
        assert torch.allclose(dual.duals, 2 * torch.tensor([-0.15, -0.05, 0.05, 0.15], dtype=torch.float64))

    def test_an_overused_region_sinks_as_one(self):
        left, right = normal(0, 32) - 10, normal(1, 32) + 10
        dual = SemiDual.start(torch.cat([left, right]), torch.full((64,), 1 / 64))
        wins = torch.cat([torch.full((32,), 3), torch.full((32,), 1)])
        dual.ascend(wins, 128, 1.0, average=False)
        alone = (1 / 64 - wins / 128).abs()[0]
        assert dual.duals[:32].max() < -20 * alone and dual.duals[32:].min() > 20 * alone

    def test_right_usage_moves_nothing(self):
        dual = SemiDual.start(normal(0, 50), torch.full((50,), 1 / 50, dtype=torch.float64))
        dual.ascend(torch.full((50,), 2), 100, 5.0, average=False)
        assert dual.duals.abs().max() < 1e-12

    def test_a_step_raises_the_dual_value(self):
        atoms, noise = normal(0, 100) * 2, normal(1, 20_000)
        dual = SemiDual.start(atoms, torch.full((100,), 1 / 100))
        before = dual_value(noise, atoms, dual.duals, dual.masses)
        dual.ascend(torch.bincount(dual.lookup(noise).index, minlength=100), len(noise), 0.1, average=False)
        assert dual_value(noise, atoms, dual.duals, dual.masses) > before

    def test_the_average_is_the_mean_of_what_entered_it(self):
        dual, seen = SemiDual.start(normal(0, 5), torch.full((5,), 0.2)), []
        for number, wins in enumerate(torch.randint(1, 20, (6, 5), generator=generator(0))):
            dual.ascend(wins, int(wins.sum()), 1.0, average=number >= 2)
            seen += [dual.duals] if number >= 2 else []
        assert torch.allclose(dual.average, torch.stack(seen).mean(0)) and dual.averaged == 4


@pytest.mark.parametrize("masses", [torch.ones(3), torch.tensor([0.5, 0.5, 0.0, 0.0])])
def test_masses_must_be_positive_and_one_an_atom(masses):
    with pytest.raises(UsageError, match="4 atoms"):
        SemiDual.start(torch.zeros(4, 2), masses)


class TestFeed:
    def starving(self):
        atoms = torch.cat([normal(0, 40), normal(1, 25) + 12])
        dual = SemiDual.start(atoms, torch.full((65,), 1 / 65))
        dual.recent = torch.cat([(torch.arange(65) < 40).double(), torch.tensor([10.0**6], dtype=torch.float64)])
        return dual

    def test_starved_atoms_rise_until_each_just_reaches_a_noise(self):
        dual, noise = self.starving(), normal(2, 300)
        before = dual.lookup(noise)
        assert (before.index < 40).all()
        dual.feed(noise, before.value)
        assert (dual.duals[:40] == 0).all()
        slack = half_squared_cost(dual.atoms, noise) - before.value - dual.duals[:, None]
        assert slack[40:].min(1).values.abs().max() < 1e-4 and slack[:40].min() > -1e-4

    def test_it_may_be_done_for_a_few_at_a_time(self, monkeypatch):
        found, noise = [], normal(2, 300)
        for slacks in (2**24, 7 * 300):
            monkeypatch.setattr("anabranch.transport._semidiscrete._SLACKS", slacks)
            dual = self.starving()
            dual.feed(noise, dual.lookup(noise).value)
            found.append(dual.duals)
        torch.testing.assert_close(*found, rtol=0, atol=1e-4)  # float32, at costs of a hundred

    def test_where_nobody_starves_nothing_rises(self):
        dual, noise = self.starving(), normal(2, 300)
        dual.recent[:] = 10.0**6
        dual.feed(noise, dual.lookup(noise).value)
        assert (dual.duals == 0).all()


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
        flat = SemiDual.start(normal(0, 50), torch.full((50,), 1 / 50))
        flat.begin(normal(1, 256))
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
