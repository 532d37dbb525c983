"""Geodesics between measures: W_p, and the measures that lie on the way from one to the other.

A plan between n and m points has at most n + m − 1 cells with mass (the simplex ends in a vertex), so it is kept as a
list of cells. Everything that depends on the points is computed from those cells once more, by autograd's operations:
the plan itself is held fixed, which gives the right gradients of W_p by the envelope theorem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import AnabranchError, UsageError
from anabranch.transport._cost import half_squared_cost, nearest
from anabranch.transport._exact import SIMPLEX_ITERATIONS, assignment
from anabranch.transport._measure import Measure, same_space

DUST = 1e-9  # of an even share of the mass: what rounding leaves in a cell


@dataclass(frozen=True)
class Crossing:
    """An optimal plan from x to y as its cells: `mass` (k,) goes from point `source` (k,) to point `target` (k,).

    `height` (m,) are the prices at y that prove it optimal; the next plan, to nearly the same places, may start there.
    """

    source: Tensor
    target: Tensor
    mass: Tensor
    height: Tensor | None = None


@dataclass(frozen=True)
class Interpolation:
    """A `measure` on the way from x to y, the `distance` W_p(x, y) as a tensor, and the plan behind both."""

    measure: Measure
    distance: Tensor
    crossing: Crossing


def crossing(x: Measure, y: Measure, power: float = 2.0, start: Tensor | None = None) -> Crossing:
    """An optimal plan between x and y for the cost ‖x − y‖^p, solved in float64 on the CPU.

    `start` (m,) are prices at y to begin with: good ones shorten the search, and none change the cost reached.
    """
    _check_power(power)
    same_space(x, y)
    first, second = x.detach().double(), y.detach().double()
    cost = half_squared_cost(first.points, second.points).cpu()
    if power != 2:
        cost = (2 * cost.clamp_min(0)) ** (power / 2)
    even = all(bool((w == w[0]).all()) for w in (x.weight, y.weight))
    if even and len(x) == len(y):
        index = torch.arange(len(x), device=x.points.device)
        return Crossing(index, assignment(cost).to(index.device), first.weight)
    source, target, mass, height = _simplex(cost, first.weight, second.weight, start)
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
    plan = crossing(x, y, power, start)
    between = _every_cell(x, y, plan, t, most) if exact else _barycentric(x, y, plan, t)
    return Interpolation(between, crossing_distance(x, y, plan, power), plan)


def barycentres(plan: Crossing, x: Measure, y: Measure) -> Tensor:
    """For each point of x the mean of the points of y that it is matched with, (n, d)."""
    return _means(plan.source, plan.mass, y.points[plan.target], len(x))


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
    back = Crossing(plan.target, plan.source, plan.mass)
    return Measure(t * y.points + (1 - t) * barycentres(back, y, x).to(y.points.dtype), y.weight)


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


def _means(index: Tensor, mass: Tensor, values: Tensor, size: int) -> Tensor:
    """Σ mass · value / Σ mass over the cells of each index, (size, d)."""
    total = mass.new_zeros(size).index_add(0, index, mass)
    share = (mass / total[index]).to(values.dtype)
    return values.new_zeros(size, values.shape[1]).index_add(0, index, share[:, None] * values)


def _simplex(cost: Tensor, a: Tensor, b: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cells and column prices of an optimal plan, by POT's network simplex; the marginals are kept to rounding."""
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
        g = start.detach().cpu().double().numpy()
        prices = ((matrix - g).min(1), g)
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
    rows, columns = np.nonzero(plan > 0)
    return (*map(torch.from_numpy, (rows, columns, plan[rows, columns], np.asarray(log["v"]))),)  # type: ignore[return-value]


def _check_power(power: float) -> None:
    if not (power >= 1 and np.isfinite(power)):
        raise UsageError(f"p = {power} was given; W_p is a distance for p ≥ 1.")
