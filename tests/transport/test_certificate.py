"""Certified gaps against the exact solver: the sandwich dual ≤ optimum ≤ primal, and plans that are feasible."""

import numpy as np
import ot
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator
from anabranch.transport import _certificate as certificate
from anabranch.transport import half_squared_cost
from anabranch.transport._certificate import duality_gap


def points(seed, count, dimension, spread=1.0):
    return spread * torch.randn(count, dimension, generator=generator(seed, "certificate"), dtype=torch.float64)


def random_masses(seed, count):
    masses = torch.rand(count, generator=generator(seed, "masses"), dtype=torch.float64)
    masses[0] = 0
    return masses / masses.sum()


class Case:
    """Noises, atoms and masses with the exact optimum and the exact duals of the atoms."""

    def __init__(self, dimension=2, atoms=60, sample=1200, masses=None):
        self.noise, self.atoms = points(0, sample, dimension), points(1, atoms, dimension, 2.0) + 1
        self.masses = masses
        cost = half_squared_cost(self.noise, self.atoms).numpy()
        weights = np.full(atoms, 1 / atoms) if masses is None else masses.numpy()
        plan, log = ot.emd(np.full(sample, 1 / sample), weights, cost, log=True, numItermax=10**6)
        self.optimum, self.duals = float((plan * cost).sum()), torch.as_tensor(log["v"])

    def gap(self, perturbation=0.0, duals=None):
        noise = points(2, len(self.atoms), 1)[:, 0]
        duals = self.duals + perturbation * noise if duals is None else duals
        return duality_gap(self.noise, self.atoms, duals, self.masses)


CASES = {
    "plane": {},
    "line": {"dimension": 1},
    "beyond the tree": {"dimension": 12},
    "odd count": {"sample": 1001},
    "masses": {"masses": random_masses(3, 60)},
    "fewer noises than atoms": {"sample": 37},
    "one atom": {"atoms": 1, "sample": 5},
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    return Case(**CASES[request.param])


def settled_plan(monkeypatch, case, duals):
    """The final plan, and what `duality_gap` says of it."""
    plans, settle = [], certificate._settle
    monkeypatch.setattr(certificate, "_settle", lambda *given: plans.append(settle(*given)) or plans[-1])
    return case.gap(duals=duals), plans[0]


@pytest.mark.parametrize("perturbation", [0.0, 0.1, 100.0])
def test_the_plan_is_feasible_and_costs_what_is_said(monkeypatch, case, perturbation):
    duals = case.duals + perturbation * points(4, len(case.atoms), 1)[:, 0]
    result, plan = settled_plan(monkeypatch, case, duals)
    sample, size = len(case.noise), len(case.atoms)
    masses = np.full(size, 1 / size) if case.masses is None else case.masses.numpy()
    assert plan.amount.min() >= 0 and plan.slack.min() >= 0
    np.testing.assert_allclose(np.bincount(plan.noise, plan.amount, sample), 1 / sample, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.bincount(plan.atom, plan.amount, size), masses, rtol=0, atol=1e-12)
    cost = (case.noise[plan.noise] - case.atoms[plan.atom]).square().sum(1).numpy() / 2
    assert result.primal == pytest.approx(float(plan.amount @ cost), rel=1e-9)


@pytest.mark.parametrize("perturbation", [0.0, 1e-3, 0.03, 1.0, 30.0])
def test_the_optimum_lies_between(case, perturbation):
    result = case.gap(perturbation)
    rounding = 1e-9 * case.optimum * (1 + perturbation)
    assert result.dual <= case.optimum + rounding
    assert result.primal >= case.optimum - rounding
    assert result.gap >= 0 and result.relative == pytest.approx(result.gap / result.primal)
    assert result.gap == pytest.approx(result.primal - result.dual, abs=1e-9 * (1 + perturbation))


def test_the_dual_and_the_usage_are_those_of_the_definition(case):
    duals = case.duals + 0.1 * points(5, len(case.atoms), 1)[:, 0]
    masses = torch.full_like(duals, 1 / len(duals)) if case.masses is None else case.masses
    least = (half_squared_cost(case.noise, case.atoms) - duals).min(1)
    usage = least.indices.bincount(minlength=len(duals)) / len(case.noise)
    result = case.gap(duals=duals)
    assert result.dual == pytest.approx(float(least.values.mean() + masses @ duals), rel=1e-9)
    assert result.total_variation == pytest.approx(float((usage - masses).abs().sum() / 2), abs=1e-6)


def test_exact_duals_leave_no_gap(case):
    result = case.gap()
    assert result.relative < 2e-4
    assert result.dual == pytest.approx(case.optimum, rel=1e-9)


def test_the_gap_grows_with_the_perturbation():
    case = Case()
    gaps = [case.gap(size).relative for size in (0.0, 0.01, 0.1, 1.0)]
    assert gaps == sorted(gaps) and gaps[1] < 0.01 < 0.05 < gaps[3]


def test_the_repair_is_near_the_best_possible():
    """The mean slack of the exact plan is the least there is for these duals; ours must be close to it."""
    case = Case(atoms=100, sample=2000)
    for perturbation in (0.003, 0.03):
        result = case.gap(perturbation)
        assert result.gap <= 2 * (case.optimum - result.dual)


def test_empty_clusters_are_filled_from_the_nearest_ones():
    """Two pairs of clusters, far apart; the noises lie on one of each pair, and half must go to the other."""
    centres = torch.tensor([[0.0, 0.0], [1.0, 100.0], [1.0, 1.0], [0.0, 101.0]], dtype=torch.float64)
    noise = points(6, 400, 2, 0.05) + centres[:2].repeat_interleave(200, 0)
    atoms = points(7, 40, 2, 0.05) + centres.repeat_interleave(10, 0)
    weights = np.full(400, 1 / 400), np.full(40, 1 / 40)
    optimum = ot.emd2(*weights, half_squared_cost(noise, atoms).numpy())
    assert duality_gap(noise, atoms, torch.zeros(40, dtype=torch.float64)).primal <= 1.1 * optimum


def test_atoms_that_no_noise_chooses_get_their_mass(monkeypatch):
    case = Case()
    duals = case.duals.clone()
    duals[:5] -= 1e3
    result, plan = settled_plan(monkeypatch, case, duals)
    np.testing.assert_allclose(np.bincount(plan.atom, plan.amount, 60), 1 / 60, rtol=0, atol=1e-12)
    assert result.primal <= 1.2 * case.optimum


def test_a_constant_added_to_the_duals_changes_nothing():
    case = Case()
    assert case.gap(duals=case.duals + 7).gap == pytest.approx(case.gap().gap, abs=1e-6)


@pytest.mark.parametrize("dimension", [2, 12])
def test_single_precision_and_images(dimension):
    case = Case(dimension)
    single = duality_gap(case.noise.float().reshape(-1, dimension, 1), case.atoms.float(), case.duals.float())
    assert single.primal == pytest.approx(case.optimum, rel=1e-3) and single.gap >= 0


def test_refusals_are_sentences():
    noise, atoms, duals = points(8, 6, 2), points(9, 3, 2), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(DataError, match="one space"):
        duality_gap(points(8, 6, 3), atoms, duals)
    with pytest.raises(UsageError, match="one number an atom"):
        duality_gap(noise, atoms, duals[:2])
    with pytest.raises(DataError, match="not finite"):
        duality_gap(noise, atoms, duals + float("inf"))
    for masses in (torch.tensor([-0.5, 0.5, 1.0]), torch.ones(3)):
        with pytest.raises(UsageError, match="sum to 1"):
            duality_gap(noise, atoms, duals, masses)
