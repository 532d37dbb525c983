"""Geodesics between measures: W_p, and the measures that lie on the way from one to the other.

A plan between n and m points has at most n + m − 1 cells with mass (the simplex ends in a vertex), so it is kept as a
list of cells. Everything that depends on the points is computed from those cells once more, by autograd's operations:
the plan itself is held fixed, which gives the right gradients of W_p by the envelope theorem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anabranch.errors import AnabranchError, UsageError
from anabranch.transport._cost import half_squared_cost, nearest
from anabranch.transport._exact import SIMPLEX_ITERATIONS, assignment
from anabranch.transport._measure import Measure, same_space

Array = NDArray[np.float64]
SCALES = (0.2, 0.35, 0.5, 0.7, 0.85, 1.0)  # of earlier prices, to try as a start
DUST = 1e-9  # of an even share of the mass: what rounding leaves in a cell


@dataclass(frozen=True)
class Crossing:
    """An optimal plan from x to y as its cells: `mass` (k,) goes from point `source` (k,) to point `target` (k,).

    `height` (n,) are the prices at x that prove it optimal; the next plan, from the same x, may start there.
    """

    source: Tensor
    target: Tensor
    mass: Tensor
    height: Tensor | None = None

    def reversed(self) -> Crossing:
        """The same plan from y to x."""
        return Crossing(self.target, self.source, self.mass)


@dataclass(frozen=True)
class Interpolation:
    """A `measure` on the way from x to y, and the plan behind it."""

    measure: Measure
    crossing: Crossing
    ends: tuple[Measure, Measure]
    power: float

    @property
    def distance(self) -> Tensor:
        """W_p(x, y), computed from the points when it is asked for."""
        return crossing_distance(*self.ends, self.crossing, self.power)


def crossing(x: Measure, y: Measure, power: float = 2.0, start: Tensor | None = None, rough: bool = False) -> Crossing:
    """An optimal plan between x and y for the cost ‖x − y‖^p, solved in float64 on the CPU.

    `start` (n,) are prices at x to begin with: good ones shorten the search, and none change the cost reached. A
    `rough` plan is optimal for costs in float32, which take half the time; its cost is above the least by rounding.
    """
    _check_power(power)
    same_space(x, y)
    first, second = x.detach().double(), y.detach().double()
    even = all(bool((w == w[0]).all()) for w in (x.weight, y.weight))
    square = even and len(x) == len(y)
    rows = first.weight.new_zeros(len(x))
    if power == 2 and not square:
        cost, rows = _cost_and_rows(first, second.points, rough)
        cost = cost.cpu()
    else:
        cost = half_squared_cost(first.points, second.points).cpu()
        cost = cost if power == 2 else (2 * cost) ** (power / 2)
    if square:
        index = torch.arange(len(x), device=x.points.device)
        return Crossing(index, assignment(cost).to(index.device), first.weight)
    source, target, mass, height = _simplex(cost, rows.cpu(), first.weight, second.weight, start)
    device = x.points.device
    return Crossing(source.to(device), target.to(device), mass.to(device), height.to(device))


def crossing_distance(x: Measure, y: Measure, plan: Crossing, power: float = 2.0) -> Tensor:
    """(Σ mass ‖x − y‖^p)^(1/p) over the plan's cells: W_p where the plan is optimal, more for any other.

    Differentiable in the points of both; at distance zero the gradient is zero.
    """
    squares = (x.points.double()[plan.source] - y.points.double()[plan.target]).square().sum(1)
    if power == 2:
        total = (plan.mass * squares).sum()
    else:
        apart = squares > 0  # a root has no slope at zero; there the gradient is taken to be zero
        total = (plan.mass[apart] * squares[apart] ** (power / 2)).sum()
    return total ** (1 / power) if float(total.detach()) > 0 else total


def wasserstein(x: Measure, y: Measure, power: float = 2.0) -> Tensor:
    """W_p(x, y) for any p ≥ 1 and any weights, in float64; differentiable in the points of both.

    >>> from anabranch.transport import measure
    >>> wasserstein(measure([[0.0, 0.0]]), measure([[3.0, 4.0], [0.0, 0.0]], [0.25, 0.75]), power=1)
    tensor(1.2500, dtype=torch.float64)
    """
    return crossing_distance(x, y, crossing(x, y, power), power)


def interpolate(
    x: Measure,
    y: Measure,
    t: float,
    power: float = 2.0,
    exact: bool = False,
    most: int | None = None,
    start: Tensor | None = None,
) -> Interpolation:
    """The measure at t ∈ (0, 1) on the geodesic from x to y.

    `exact` keeps every cell of the plan as an atom (FedWAD, eq. 5), at most `most` of them. Otherwise every atom of the
    smaller of the two measures moves towards the mean of what it is matched with, and keeps its weight (eq. 10).

    >>> from anabranch.transport import measure
    >>> interpolate(measure([[0.0], [1.0]]), measure([[4.0], [5.0]]), 0.25).measure.points.tolist()
    [[1.0], [2.0]]
    """
    if not 0 < t < 1:
        raise UsageError(f"t = {t} was given; an interpolating measure lies strictly inside (0, 1).")
    plan = crossing(x, y, power, start, rough=not exact)
    between = _every_cell(x, y, plan, t, most) if exact else _barycentric(x, y, plan, t)
    return Interpolation(between, plan, (x, y), power)


def barycentres(plan: Crossing, x: Measure, y: Measure) -> Tensor:
    """For each point of x the mean of the points of y that it is matched with, (n, d)."""
    total = plan.mass.new_zeros(len(x)).index_add(0, plan.source, plan.mass)
    share = (plan.mass / total[plan.source]).to(y.points.dtype)
    cells = torch.sparse_coo_tensor(
        torch.stack([plan.source, plan.target]), share, (len(x), len(y)), check_invariants=False
    )
    means: Tensor = torch.sparse.mm(cells, y.points)
    return means


def spread(plan: Crossing, x: Measure, y: Measure) -> float:
    """Σ mass ‖y − mean of the y at the same x‖²: how far matched points scatter about their mean.

    It is what a measure of len(x) atoms cannot tell of y, whatever its atoms are.
    """
    means = barycentres(plan, x.double(), y.double())
    scatter = (y.points.double()[plan.target] - means[plan.source]).square().sum(1)
    return float((plan.mass * scatter).sum())


def _barycentric(x: Measure, y: Measure, plan: Crossing, t: float) -> Measure:
    if len(x) <= len(y):
        return Measure((1 - t) * x.points + t * barycentres(plan, x, y).to(x.points.dtype), x.weight)
    return Measure(t * y.points + (1 - t) * barycentres(plan.reversed(), y, x).to(y.points.dtype), y.weight)


def _every_cell(x: Measure, y: Measure, plan: Crossing, t: float, most: int | None) -> Measure:
    real = plan.mass * len(plan.mass) > DUST
    points = (1 - t) * x.points[plan.source[real]] + t * y.points[plan.target[real]]
    mass = plan.mass[real].to(points.dtype)
    return thinned(Measure(points, mass / mass.sum()), most or len(mass))


def thinned(atoms: Measure, most: int) -> Measure:
    """At most `most` atoms: the heaviest stay, and each takes the mass of those whose nearest it is."""
    if most < 1:
        raise UsageError(f"A measure of {most} atoms cannot be; give one or more.")
    if len(atoms) <= most:
        return atoms
    order = atoms.weight.detach().argsort(descending=True, stable=True)
    kept, others = order[:most], order[most:]
    home = nearest(atoms.points[others], atoms.points[kept]).index
    return Measure(atoms.points[kept], atoms.weight[kept].index_add(0, home, atoms.weight[others]))


def _cost_and_rows(x: Measure, y: Tensor, rough: bool) -> tuple[Tensor, Tensor]:
    """½‖x_i − y_j‖² less a number for each i, and these numbers, ½‖x_i − ȳ‖²: all plans share them.

    So x, often by far the larger, need not be centred: it is only read.
    """
    mean = y.mean(0)
    away = y - mean
    height = away.square().sum(1) / 2 + away @ mean
    lengths = torch.linalg.vector_norm(x.points, dim=1).square() / 2
    rows = lengths - x.times(mean[None])[:, 0] + mean.square().sum() / 2
    product = x.times(away.float()).double() if rough else x.times(away)
    return torch.sub(height, product, out=product), rows


def _scaled_prices(cost: Array, rows: Array, a: Array, b: Array, start: Array) -> tuple[Array, Array]:
    """Prices at both sides from those at x of an earlier plan, scaled to where the dual is highest.

    Along a geodesic that ends in x the prices at x shrink in proportion to the way that is left (Hopf and Lax). ξ never
    moves quite so, and the best of a few scales is good enough to start from.
    """
    sides = [scale * start - rows for scale in SCALES]
    pairs = [(f, (cost - f[:, None]).min(0)) for f in sides]
    _, columns = max(pairs, key=lambda pair: float(a @ pair[0] + b @ pair[1]))
    return (cost - columns).min(1), columns


def _simplex(
    cost: Tensor, rows: Tensor, a: Tensor, b: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cells and row prices of an optimal plan, by POT's network simplex; the marginals are kept to rounding."""
    try:
        import ot
    except ImportError:
        raise AnabranchError(
            "Plans between weighted measures, or measures of different sizes, need the package POT, which is not"
            " installed; pip install POT."
        ) from None
    matrix = np.ascontiguousarray(cost.numpy())
    prices = None
    if start is not None:
        earlier = start.detach().cpu().double().numpy()
        prices = _scaled_prices(matrix, rows.numpy(), a.cpu().numpy(), b.cpu().numpy(), earlier)
    plan, log = ot.emd(
        a.cpu().numpy(),
        b.cpu().numpy(),
        matrix,
        numItermax=SIMPLEX_ITERATIONS,
        log=True,
        center_dual=False,
        check_marginals=False,
        potentials_init=prices,
    )
    if log["warning"] is not None:
        raise AnabranchError(f"The network simplex found no optimal plan: {log['warning']}")
    source, target = np.nonzero(plan > 0)
    height = np.asarray(log["u"]) + rows.numpy()
    return (*map(torch.from_numpy, (source, target, plan[source, target], height)),)  # type: ignore[return-value]


def _check_power(power: float) -> None:
    if not (power >= 1 and np.isfinite(power)):
        raise UsageError(f"p = {power} was given; W_p is a distance for finite p ≥ 1.")
