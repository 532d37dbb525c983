"""How far are semi-discrete duals from the best? A bound that holds without statistics.

Weak duality needs a feasible plan, and duals alone do not give one: the cells they cut hold more or less than
their atoms' masses. Here the surplus is passed on from cell to cell, by maximum flows over the cheapest moves
first, until every atom has its mass. Short moves between neighbours are nearly free; long ones are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.transport._cost import CHUNK_NUMBERS, flat_points, half_squared_cost

CANDIDATES = 5  # atoms offered to each noise at first: its own and the cheapest neighbours
LEVELS = (
    0.003,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
)  # shares of these offers, cheapest first, open to the first flows
ATTEMPTS, GROWTH = 20, 1.5  # at offering longer moves, each time more of them: dearer, but sooner done
HOPELESS = 0.75  # share of the mass that neighbours cannot take beyond which long moves are not tried
TREE_DIMENSIONS = 8  # beyond, a k-d tree is slower than the whole matrix

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DualityGap:
    """`dual` ≤ optimal cost of the sampled problem ≤ `primal`; `gap` = primal − dual, `relative` = gap/|primal|.

    `total_variation` = ½ Σⱼ |share of the noises in cell j − νⱼ|, as the duals leave it.
    """

    dual: float
    primal: float
    gap: float
    relative: float
    total_variation: float


@dataclass(frozen=True)
class _Problem:
    """noise (M, d), atoms (N, d), duals g (N,) and masses ν (N,); a score is c(x0, x_j) − g_j."""

    noise: Tensor
    atoms: Tensor
    duals: Tensor
    masses: Floats

    def best(self, rows: Integers, columns: Integers, count: int) -> Integers:
        """The `count` atoms of least score among `columns` for each noise of `rows`, (rows, count)."""
        noise, atoms, duals = self.noise[rows], self.atoms[columns], self.duals[columns]
        if noise.shape[1] > TREE_DIMENSIONS:
            parts = torch.split(noise, max(1, CHUNK_NUMBERS // len(columns)))
            found = [(half_squared_cost(part, atoms) - duals.to(part)).topk(count, largest=False)[1] for part in parts]
            return np.asarray(columns[torch.cat(found).cpu().numpy()])
        from scipy.spatial import cKDTree

        # With the height √(2(max g − g_j)) as one more coordinate, the nearest atom is the one of least score.
        height = (2 * (duals.max() - duals)).sqrt()
        tree = cKDTree(torch.column_stack([atoms, height]).cpu().numpy(), leafsize=128)
        points = torch.column_stack([noise, torch.zeros_like(noise[:, 0])]).cpu().numpy()
        return np.asarray(columns[tree.query(points, k=range(1, count + 1))[1]])

    def score(self, rows: Integers, columns: Integers) -> Floats:
        """c(x0, x_j) − g_j for pairs of a row and a column, in float64 and without the matrix form."""
        parts = np.array_split(np.arange(len(rows)), 1 + len(rows) * self.noise.shape[1] // CHUNK_NUMBERS)
        pairs = [(rows[part], columns[part]) for part in parts]
        scores = [
            (self.noise[i].double() - self.atoms[j].double()).square().sum(1) / 2 - self.duals[j] for i, j in pairs
        ]
        return np.asarray(torch.cat(scores).double().cpu().numpy())


@dataclass(frozen=True)
class _Plan:
    """Offers: `amount` (0 or more) of `noise` lies on `atom`, at a `slack` = score − the noise's least score."""

    noise: Integers
    atom: Integers
    slack: Floats
    amount: NDArray[np.int32] | Floats

    def joined(self, other: _Plan) -> _Plan:
        return _Plan(*(np.concatenate([mine, vars(other)[name]]) for name, mine in vars(self).items()))


def duality_gap(noise: Tensor, atoms: Tensor, duals: Tensor, masses: Tensor | None = None) -> DualityGap:
    """The duality gap of duals g (N,) between M equal noises (M, …) and atoms (N, …) of masses ν (default 1/N).

    With c = ½‖x0 − x_j‖² the dual value is mean over x0 of minⱼ (c − g_j), plus Σ ν_j g_j. Any plan that gives
    atom j the mass ν_j costs that plus its mean slack, slack(x0, j) = c − g_j − min_k (c − g_k) ≥ 0; so the mean
    slack of the plan built here bounds how far g is from the optimum *of this sample*. The bound is tight for
    good duals and loose, but true, for poor ones. Noises are split where masses ask for it.

    >>> duality_gap(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [3.0]]), torch.tensor([5.0, 0.0]))
    DualityGap(dual=0.0, primal=0.5, gap=0.5, relative=1.0, total_variation=0.5)
    """
    problem = _problem(noise, atoms, duals, masses)
    target, size, sample = problem.masses, len(problem.atoms), len(problem.noise)
    atom = problem.best(np.arange(sample), np.arange(size), min(CANDIDATES, size))
    rows = np.arange(sample).repeat(atom.shape[1])
    score = problem.score(rows, atom.ravel()).reshape(atom.shape)
    floor, first = score.min(1), score.argmin(1)
    # Flows are of whole units. A noise is one unit if all masses allow it, else many; `_settle` does the rest.
    whole = np.allclose(target * sample, np.round(target * sample), rtol=0, atol=1e-6)
    units = 1 if whole else max(1, 2**30 // sample)
    amount = np.zeros(atom.shape, dtype=np.int32)
    amount[np.arange(sample), first] = units
    plan = _Plan(rows, atom.ravel(), (score - floor[:, None]).ravel(), amount.ravel())
    capacity = np.floor(target * sample * units + 1e-6 * units).astype(np.int64)
    plan = _settle(problem, _balance(problem, plan, floor, capacity), floor)
    used = np.bincount(atom[np.arange(sample), first], minlength=size) / sample
    dual, gap = float(floor.mean() + target @ problem.duals.cpu().numpy()), float(plan.amount @ plan.slack)
    relative = gap / abs(dual + gap) if gap else 0.0
    return DualityGap(dual, dual + gap, gap, relative, float(np.abs(used - target).sum() / 2))


def _problem(noise: Tensor, atoms: Tensor, duals: Tensor, masses: Tensor | None) -> _Problem:
    """The arguments, refused or in working form: flat, detached, in float64 where a tree will be asked."""
    x, y, g = flat_points(noise.detach(), "noise"), flat_points(atoms.detach(), "atoms"), duals.detach().double()
    if x.shape[1] != y.shape[1] or x.device != y.device or g.device != y.device:
        raise DataError(
            f"noise is {tuple(x.shape)} on {x.device}, atoms {tuple(y.shape)} on {y.device} and duals are on "
            f"{g.device}; they must live in one space and on one device."
        )
    nu = torch.full((len(y),), 1 / len(y), dtype=torch.float64) if masses is None else masses.detach().double()
    if g.shape != (len(y),) or nu.shape != (len(y),):
        raise UsageError(f"duals {tuple(g.shape)} and masses {tuple(nu.shape)} need one number an atom: ({len(y)},).")
    if not all(bool(values.isfinite().all()) for values in (x, y, g, nu)):
        raise DataError("Noise, atoms, duals or masses are not finite; a bound needs numbers.")
    if bool((nu < 0).any()) or abs(float(nu.sum()) - 1) > 1e-3:
        raise UsageError(f"masses sum to {float(nu.sum()):.4g}; they must not be negative and must sum to 1.")
    dtype = torch.float64 if x.shape[1] <= TREE_DIMENSIONS else x.dtype
    return _Problem(x.to(dtype), y.to(dtype), g, (nu / nu.sum()).cpu().numpy())


def _balance(problem: _Problem, plan: _Plan, floor: Floats, capacity: Integers) -> _Plan:
    """The plan with its atoms filled to their capacities: by neighbours first, then by ever longer moves."""
    others = 1 - len(floor) / len(plan.noise)  # share of the offers that are not a noise's own atom
    for threshold in np.quantile(plan.slack, 1 - others * (1 - np.array(LEVELS))):
        plan = _push(plan, (plan.slack <= threshold) | (plan.amount > 0), capacity)
    for attempt in range(ATTEMPTS):
        missing = (capacity - np.bincount(plan.atom, plan.amount, len(capacity))).clip(0).sum()
        missing *= len(floor) / plan.amount.sum()  # in noises, as offers are
        if missing == 0 or missing > HOPELESS * len(floor):
            break
        plan = plan.joined(_exits(problem, plan, floor, capacity, math.ceil(2 * GROWTH**attempt * missing)))
        plan = _push(plan, np.ones(len(plan.noise), dtype=bool), capacity)
    return plan


def _push(plan: _Plan, opened: NDArray[np.bool_], capacity: Integers) -> _Plan:
    """As much surplus as can go, from overfull to underfull atoms by the offers `opened`."""
    from scipy.sparse.csgraph import maximum_flow

    offers = _Plan(*(values[opened] for values in vars(plan).values()))
    network = _network(offers, capacity)
    sink = network.shape[0] - 1
    flow = maximum_flow(network, sink - 1, sink).flow
    amount = plan.amount.copy()
    amount[opened] += np.asarray(flow[len(capacity) + offers.noise, offers.atom]).ravel()
    return replace(plan, amount=amount)


def _network(plan: _Plan, capacity: Integers) -> Any:
    """source → overfull atom → noise that lies there → atom offered to it → … → underfull atom → sink.

    Nodes are the atoms, the noises, the source and the sink, in this order; a sparse matrix of widths.
    """
    from scipy.sparse import csr_array

    surplus = np.bincount(plan.atom, plan.amount, len(capacity)).astype(np.int64) - capacity
    over, under, lies = np.flatnonzero(surplus > 0), np.flatnonzero(surplus < 0), plan.amount > 0
    noise = len(capacity) + plan.noise
    source = noise.max() + 1
    start = np.concatenate([noise, plan.atom[lies], np.full(len(over), source), under])
    end = np.concatenate([plan.atom, noise[lies], over, np.full(len(under), source + 1)])
    whole = np.full(len(noise), plan.amount.sum() // (source - len(capacity)))  # the units of one noise
    width = np.concatenate([whole, plan.amount[lies], surplus[over], -surplus[under]]).astype(np.int32)
    return csr_array((width, (start, end)), shape=(source + 2, source + 2))


def _exits(problem: _Problem, plan: _Plan, floor: Floats, capacity: Integers, count: int) -> _Plan:
    """At most `count` new offers: the cheapest moves out of the atoms to which surplus can go but no further.

    No offer of the plan leads out of these atoms, so that none is repeated.
    """
    from scipy.sparse.csgraph import breadth_first_order

    network = _network(plan, capacity)
    reached = breadth_first_order(network, network.shape[0] - 2, return_predecessors=False)
    outside = np.setdiff1d(np.arange(len(capacity)), reached)
    lies = np.flatnonzero((plan.amount > 0) & ~np.isin(plan.atom, outside))
    lies = lies[np.unique(plan.noise[lies], return_index=True)[1]]
    noise = plan.noise[lies]
    atom = problem.best(noise, outside, 1)[:, 0]
    slack = (problem.score(noise, atom) - floor[noise]).clip(0)
    cheapest = np.argsort(slack - plan.slack[lies])[:count]
    nothing = np.zeros(len(cheapest), dtype=np.int32)
    return _Plan(noise[cheapest], atom[cheapest], slack[cheapest], nothing)


def _settle(problem: _Problem, plan: _Plan, floor: Floats) -> _Plan:
    """The plan in masses, exactly feasible: atoms keep what is cheapest, up to ν; the rest goes where room is.

    Only fractions of a unit are left here, or much if the duals are poor. Both sides are laid along the first
    coordinate and cut where either ends.
    """
    target = problem.masses
    order = np.lexsort((plan.slack, plan.atom))
    atom, noise, slack = plan.atom[order], plan.noise[order], plan.slack[order]
    amount = plan.amount[order] / plan.amount.sum()
    held = np.bincount(atom, amount, len(target))
    before = np.cumsum(amount) - amount - (np.cumsum(held) - held)[atom]
    kept = np.clip(target[atom] - before, 0, amount)
    rest, room = np.bincount(noise, amount - kept), (target - np.bincount(atom, kept, len(target))).clip(0)
    left, right = problem.noise[:, 0].argsort().cpu().numpy(), problem.atoms[:, 0].argsort().cpu().numpy()
    ends = np.cumsum(rest[left]), np.cumsum(room[right])
    cuts = np.sort(np.concatenate(ends))
    piece = np.diff(cuts, prepend=0.0)
    middle, piece = (cuts - piece / 2)[piece > 0], piece[piece > 0]
    i = left[np.searchsorted(ends[0], middle).clip(max=len(left) - 1)]
    j = right[np.searchsorted(ends[1], middle).clip(max=len(right) - 1)]
    moved = _Plan(i, j, (problem.score(i, j) - floor[i]).clip(0), piece)
    return _Plan(noise, atom, slack, kept).joined(moved)
