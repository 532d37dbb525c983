"""Semi-discrete duals against the closed form on the line, brute force in float64, and the exact solver."""

from itertools import pairwise

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import UsageError
from anabranch.seeds import generator
from anabranch.transport import SemiDual, bisect, half_squared_cost, lookup
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
