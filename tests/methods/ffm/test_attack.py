"""The attack on the semi-discrete exchange, and what stops it.

Inside one cell a silo's answer is ½‖x0‖² − x0·x_j + ½‖x_j‖² − g_j: less ½‖x0‖², an affine function of the noise whose
slope is the atom x_j. The server knows the noises, for it knows every number that their seed is made of, so it can fit
slopes. What it does not know is which answers share a cell and how g_j moved meanwhile; the attacker here is told both.
So what is safe here is safe from anybody who listens at the server. Bare atoms are raw points: all of them fall.
Protected atoms are means of groups: the attack still finds the means, to many digits, and no point.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from anabranch.federation import Noise
from anabranch.methods.ffm import Lookup, dual_of, half_of
from anabranch.methods.ffm._semidiscrete import shared_noise
from anabranch.transport import bisect

FIT = {"rounds": 400, "local_rounds": 400, "count": 1024, "last": 0.005, "noises": 2**15, "block": 2**15}
POINTS = 300


@dataclass
class Eavesdropper:
    """Records every lookup of a fit: the noises, the answers, and from an oracle the cell of each and its dual."""

    victim: str
    noise: list = field(default_factory=list)
    answer: list = field(default_factory=list)
    cell: list = field(default_factory=list)
    dual: list = field(default_factory=list)

    def listen(self, server, silos):
        """Sits between the server and the engine, and beside the victim as the oracle."""
        ask, silo = server.federation.engine.ask, next(s for s in silos if s.name == self.victim)

        def overhear(envelopes, timeout=None):
            replies = ask(envelopes, timeout)
            question = envelopes[self.victim].question
            if isinstance(question, Lookup) and not question.settled:
                half = half_of(silo)
                cell = silo.cache["lookup"][1]
                self.noise.append(
                    shared_noise(half, question.numbers, question.purpose, question.block, question.count)
                )
                self.answer.append(replies.answers[self.victim].values)
                self.cell.append(cell)
                self.dual.append(dual_of(silo, half).duals[cell])
            return replies

        server.federation.engine.ask = overhear

    def reconstruct(self, atoms):
        """Every atom as the least-squares slope of its answers (n, 2), and how many answers it gave (n,).

        answer − ½‖x0‖² + g_j = −(x0 − x̄0)·x_j + const, with x̄0 the cell's mean noise, so that the constant drops out
        of the normal equations and no digits are lost.
        """
        noise, answer = torch.cat(self.noise).double(), torch.cat(self.answer).double()
        cell, dual = torch.cat(self.cell), torch.cat(self.dual)
        height = answer - 0.5 * noise.square().sum(1) + dual
        hits = torch.bincount(cell, minlength=atoms)

        def by_cell(values):
            return torch.zeros(atoms, *values.shape[1:], dtype=torch.float64).index_add_(0, cell, values)

        x0 = -(noise - (by_cell(noise) / hits[:, None].clamp_min(1))[cell])
        height = height - (by_cell(height) / hits.clamp_min(1))[cell]
        squares, products = by_cell(x0[:, :, None] * x0[:, None, :]), by_cell(x0 * height[:, None])
        found = torch.linalg.pinv(squares, hermitian=True) @ products[:, :, None]
        return found[:, :, 0], hits


def attack(lab, group, guards=()):
    """Fits and assigns with an eavesdropper at the server; gives its errors on the victim's 100 most-hit points."""
    silos = lab.moons(POINTS)
    coupling = {"name": "semidiscrete", "group": group}
    server = lab.server(
        lab.settings(coupling, semidiscrete=FIT, source="8gaussians"), silos, postprocessors=list(guards)
    )
    spy = Eavesdropper("a")
    spy.listen(server, silos)
    for phase in server.phases[:-1]:
        for number in range(1, phase.rounds + 1):
            server.federation.start_round(server.federation.round + 1)
            phase.step(number)
    x = silos[0].data.x.double()
    label = bisect(silos[0].data.x, group)[-1] if group > 1 else torch.arange(len(x))
    found, hits = spy.reconstruct(int(label.max()) + 1)
    attacked = hits[label].argsort(descending=True, stable=True)[:100]
    return SimpleNamespace(
        silos=silos,
        error=(found[label[attacked]] - x[attacked]).norm(dim=1),
        means=torch.stack([x[label == g].mean(0) for g in range(int(label.max()) + 1)]),
        found=found,
        neighbour=nearest_neighbour(x),
    )


def nearest_neighbour(x):
    """The median distance of a point to the next one: what it takes to tell points apart."""
    return float(torch.cdist(x, x).fill_diagonal_(float("inf")).min(1).values.median())


def pairs(silos):
    """The cost of the pairs that silos train on, of equal weight, and how often each point is used, 1 being its due."""
    costs, usage = [], []
    for silo in silos:
        table = half_of(silo).coupling
        costs.append(0.5 * (table.noise[:] - silo.data.x[table.index]).square().sum(1).mean())
        usage.append(torch.bincount(table.index, minlength=len(silo)) * len(silo) / len(table.index))
    return float(sum(costs) / len(costs)), torch.cat(usage)


@pytest.fixture(scope="module")
def bare(lab):
    return attack(lab, group=1)


@pytest.fixture(scope="module")
def protected(lab):
    return attack(lab, group=20)


def test_bare_the_attack_finds_raw_points(bare):
    assert float(bare.error.median()) < 1e-2 * bare.neighbour


def test_protected_it_finds_no_point(protected):
    assert float(protected.error.median()) >= protected.neighbour


def test_protected_it_finds_the_means_of_groups_and_nothing_finer(protected):
    """Grouping protects because a mean is all there is to find, not because the attack is weak."""
    assert len(protected.found) <= POINTS // 20
    assert (protected.found - protected.means).norm(dim=1).median() < 1e-2 * protected.neighbour


def test_noise_on_the_answers_blurs_even_the_means(lab, protected):
    noised = attack(lab, group=20, guards=[Noise(0.5, ("ffm.lookup.reply",))])
    assert float(noised.error.median()) >= noised.neighbour

    def misses(run):
        return float((run.found - run.means).norm(dim=1).median())

    assert misses(noised) > 20 * misses(protected)


def test_protected_pairs_cost_hardly_more_than_bare_ones(bare, protected):
    assert pairs(protected.silos)[0] <= 1.05 * pairs(bare.silos)[0]


@pytest.mark.parametrize("run", ["bare", "protected"])
def test_every_point_is_used_about_equally(request, run):
    usage = pairs(request.getfixturevalue(run).silos)[1]
    assert 0.5 * (usage - 1).abs().mean() < 0.08 and usage.max() < 2
    assert (usage > 0.3).float().mean() > 0.99  # so short a fit may miss one of two twins
