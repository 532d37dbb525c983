"""Exact optimal plans between finite sets: one-to-one assignments and weighted plans.

Assignments are solved by scipy's shortest augmenting paths, which start from nothing and so spend most of
their time on long paths. From about a hundred points on, we first find near-optimal duals by a few
matrix-vector products of Sinkhorn's iteration and hand over the *reduced* cost. The answer stays exact,
whatever the duals are worth (they only shift columns), and for 256 points a side or more it comes 1.5 to
7.5 times sooner than from the faster of scipy and POT: `benchmarks/exact_plans.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anabranch.errors import AnabranchError, DataError, UsageError
from anabranch.transport._cost import flat_points, half_squared_cost

Array = NDArray[np.float64]
Array32 = NDArray[np.float32]

# Measured by benchmarks/exact_plans.py: where finding the duals costs less than it saves.
PRIME_SIZE = 96  # rows, at least
PRIME_CROWDING = 8  # for n < m: rows to a cheapest column, at least; with fewer, paths are short anyway
PRIME_ASPECT = 4  # columns to a row, at most; with more, the same
PRIME_EPSILONS = (0.1, 0.025, 0.00625, 0.0015625)  # of the mean reduced cost
PRIME_EXPONENT = np.float32(-80)  # below which a kernel is nothing
PRIME_SLACK = 6.0  # in units of the last ε: how far a dual may be off at a column that stays free
SIMPLEX_ITERATIONS = 10**9
LARGEST_COPIES = 4096  # points a side when weights are made equal by repeating points


@dataclass(frozen=True)
class IndexPairs:
    """Which x0 meets which x1: `index0` (k,) into the rows and `index1` (k,) into the columns."""

    index0: Tensor
    index1: Tensor


@dataclass(frozen=True)
class Plan:
    """π (n, m) ≥ 0 with π1 = a and πᵀ1 = b, and its `cost` ⟨C, π⟩."""

    matrix: Tensor
    cost: float

    @property
    def pairs(self) -> IndexPairs:
        """The cells that carry mass, in row order."""
        index0, index1 = self.matrix.nonzero(as_tuple=True)
        return IndexPairs(index0, index1)


def assignment(cost: Tensor, contested: bool = False) -> Tensor:
    """σ (n,) minimising Σᵢ C[i, σ(i)] over one-to-one maps, for C (n, m) with n ≤ m.

    Exact to rounding in float64. For n < m some columns stay free. `contested` tells that rows compete for columns
    everywhere, as under a potential that has learned to spread them: rectangles are then primed like squares, which
    changes the time and not the answer. Safe to call from several threads at once; the solver releases the
    interpreter's lock.

    >>> assignment(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]]))
    tensor([1, 0])
    """
    matrix = _cost_matrix(cost)
    if matrix.shape[0] > matrix.shape[1]:
        rows, columns = matrix.shape
        raise UsageError(f"{rows} rows cannot each have a column of their own among {columns}; transpose the cost.")
    return torch.as_tensor(_assign(matrix, contested), device=cost.device)


def exact_plan(cost: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> Plan:
    """π ≥ 0 minimising ⟨C, π⟩ with π1 = a and πᵀ1 = b, for C (n, m); equal weights where none are given.

    With equal weights and n = m the plan is a permutation over n, found by `assignment`; otherwise POT's
    network simplex. Without POT, equal weights are still served, by repeating points.

    >>> exact_plan(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).matrix
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    matrix = _cost_matrix(cost)
    rows, columns = matrix.shape
    if a is None and b is None and rows == columns:
        plan = np.zeros_like(matrix)
        plan[np.arange(rows), _assign(matrix)] = 1 / rows
    else:
        plan = _simplex(matrix, a, b)
    return Plan(torch.as_tensor(plan, dtype=cost.dtype, device=cost.device), float(np.vdot(plan, matrix)))


def exact_cost(x: Tensor, y: Tensor) -> float:
    """The least mean of ½‖x − y‖² over plans between equally weighted x (n, …) and y (m, …): ½W₂².

    Computed in float64 on the CPU. Zero for equal sets, ½‖s‖² for a set and its copy shifted by s.

    >>> exact_cost(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [2.0]]))
    2.0
    """
    x, y = (flat_points(points.detach().cpu(), name).double() for points, name in ((x, "x"), (y, "y")))
    cost = half_squared_cost(x, y)
    if len(x) == len(y):
        return float((x - y[assignment(cost)]).square().sum() / (2 * len(x)))
    return exact_plan(cost).cost


def sample_pairs(plan: Plan, size: int, generator: torch.Generator, replacement: bool = False) -> IndexPairs:
    """`size` pairs (i, j) drawn from π.

    Without replacement (the default) no cell is drawn twice: a permutation of `size` points is used whole,
    in random order. With replacement pairs are independent draws from π (FFM, Algorithm 2), which leaves
    about a third of every batch unused. Numbers are drawn where the generator is, and used where the plan is.
    """
    weights = plan.matrix.detach().double().reshape(-1)
    if size < 1:
        raise UsageError(f"size is {size}; draw at least one pair.")
    if replacement:
        edges = weights.cumsum(0)
        draws = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64)
        draws = draws.to(edges.device) * edges[-1]
        cells = torch.searchsorted(edges, draws, right=True).clamp_max(len(edges) - 1)
    else:
        support = weights.nonzero()[:, 0]
        if size > len(support):
            raise UsageError(
                f"{size} pairs were asked for, but the plan has only {len(support)} cells with mass; "
                "ask for fewer, or draw with replacement=True."
            )
        clocks = torch.empty(len(support), dtype=torch.float64, device=generator.device)
        clocks = clocks.exponential_(generator=generator).to(weights.device)
        cells = support[(clocks / weights[support]).topk(size, largest=False).indices]
    columns = plan.matrix.shape[1]
    return IndexPairs(cells // columns, cells % columns)


def _cost_matrix(cost: Tensor) -> Array:
    """The cost as a contiguous float64 array, once it is seen to be a finite matrix."""
    if cost.ndim != 2 or 0 in cost.shape:
        raise DataError(f"The cost has shape {tuple(cost.shape)}; a matrix (n, m) with n, m ≥ 1 is needed.")
    matrix: Array = np.ascontiguousarray(cost.detach().cpu().double().numpy())
    if not np.isfinite(matrix).all():
        raise DataError("The cost holds numbers that are not finite; check the points it was made from.")
    return matrix


def _assign(matrix: Array, contested: bool = False) -> NDArray[np.int64]:
    """σ for n ≤ m, primed with approximate duals where that is faster.

    For n = m any column shift g leaves the minimisers as they are. For n < m, with g ≤ 0, ΣC = Σ(C − g) +
    Σ_used g: the first sum is least for the primed answer, the second whenever every free column has g = 0.
    Where a free column has g < 0 the duals are raised and the problem solved again, at last with g = 0.
    """
    from scipy.optimize import linear_sum_assignment

    sigma: NDArray[np.int64]
    if _worth_priming(matrix, contested):
        duals = _column_duals(matrix)
        for _ in range(2):
            sigma = linear_sum_assignment(matrix - duals)[1]
            wrong = np.delete(duals, sigma).min(initial=0.0)
            if wrong == 0.0:
                return sigma
            duals = np.minimum(0.0, duals - 2 * wrong)
    sigma = linear_sum_assignment(matrix)[1]
    return sigma


def _worth_priming(matrix: Array, contested: bool) -> bool:
    """Whether the duals cost less than they save: in large squares, and in rectangles whose rows crowd."""
    rows, columns = matrix.shape
    if rows < PRIME_SIZE or columns > PRIME_ASPECT * rows:
        return False
    return bool(rows == columns or contested or len(np.unique(matrix.argmin(1))) * PRIME_CROWDING <= rows)


def _column_duals(matrix: Array) -> Array:
    """Approximate optimal g (m,) of the assignment problem, by Sinkhorn's iteration on kernels.

    ε falls in four steps, the duals being absorbed into the kernel at each, so that float32 suffices. For n
    < m a dummy row of mass m − n and cost nothing takes the free columns; then g ≤ 0, and 0 at the columns
    thought to be free.
    """
    rows, columns = matrix.shape
    spare = np.float32(columns - rows)
    cost: Array32 = (matrix - matrix.min(1, keepdims=True)).astype(np.float32)
    scale = np.float32(cost.mean())
    if not 0 < scale < np.inf:
        return np.zeros(columns)
    cost /= scale
    f, g, f_dummy = np.zeros(rows, np.float32), np.zeros(columns, np.float32), np.float32(0)
    tiny = np.float32(1e-30)
    epsilon = np.float32(1)
    for epsilon in np.array(PRIME_EPSILONS, np.float32):
        kernel = _kernel(cost, f, g, epsilon)
        dummy = np.exp((f_dummy + g) / epsilon) if spare else np.zeros_like(g)
        u, v, u_dummy = np.ones(rows, np.float32), np.ones(columns, np.float32), np.float32(1)
        for _ in range(min(max(columns // 32, 8), 32)):
            v = 1 / (u @ kernel + u_dummy * dummy + tiny)
            u, u_dummy = 1 / (kernel @ v + tiny), spare / (dummy @ v + tiny)
        f, g = f + epsilon * np.log(u), g + epsilon * np.log(v)
        f_dummy += epsilon * np.log(u_dummy) if spare else np.float32(0)
    if spare:
        g = np.minimum(0, g + f_dummy + np.float32(PRIME_SLACK) * epsilon)
    if not np.isfinite(g).all():
        return np.zeros(columns)
    return g.astype(np.float64) * float(scale)


def _kernel(cost: Array32, f: Array32, g: Array32, epsilon: np.float32) -> NDArray[Any]:
    """exp((f + g − C)/ε), with nothing in place of what is next to nothing.

    Numbers too small to be normal, of which ε small would make many, take some processors a hundred times as long.
    """
    exponent = cost - f[:, None]
    exponent -= g
    exponent *= -1 / epsilon
    nothing = exponent < PRIME_EXPONENT
    np.maximum(exponent, PRIME_EXPONENT, out=exponent)
    np.exp(exponent, out=exponent)
    exponent[nothing] = 0
    return exponent


def _simplex(matrix: Array, a: Tensor | None, b: Tensor | None) -> Array:
    """The plan for any weights, by POT's network simplex."""
    weights_a, weights_b = _weights(a, matrix.shape[0], "a"), _weights(b, matrix.shape[1], "b")
    total_a, total_b = weights_a.sum(), weights_b.sum()
    if not math.isclose(total_a, total_b, rel_tol=1e-4):
        raise UsageError(
            f"a sums to {total_a:.6g} and b to {total_b:.6g}; a plan needs equal totals, scale one of them."
        )
    try:
        import ot
    except ImportError:
        if a is None and b is None:
            return _by_copies(matrix)
        raise AnabranchError(
            "Plans between weighted sets need the package POT, which is not installed; "
            "pip install POT, or leave the weights out."
        ) from None
    plan, log = ot.emd(
        weights_a,
        weights_b,
        matrix,
        numItermax=SIMPLEX_ITERATIONS,
        log=True,
        center_dual=False,
        check_marginals=False,
    )
    if log["warning"] is not None:
        raise AnabranchError(f"The network simplex found no optimal plan: {log['warning']}")
    result: Array = plan
    return result


def _by_copies(matrix: Array) -> Array:
    """The plan between equal weights, n ≠ m, without POT: points repeated up to the least common multiple."""
    rows, columns = matrix.shape
    size = math.lcm(rows, columns)
    if size > LARGEST_COPIES:
        raise AnabranchError(
            f"An exact plan between {rows} and {columns} points needs the package POT, which is not "
            "installed; pip install POT, or take as many points on both sides."
        )
    row, column = np.arange(size) // (size // rows), np.arange(size) // (size // columns)
    sigma = _assign(matrix[np.ix_(row, column)])
    plan = np.zeros_like(matrix)
    np.add.at(plan, (row, column[sigma]), 1 / size)
    return plan


def _weights(weights: Tensor | None, size: int, name: str) -> Array:
    """Weights as float64, equal ones where none are given."""
    if weights is None:
        return np.full(size, 1 / size)
    values: Array = weights.detach().cpu().double().numpy()
    if values.shape != (size,):
        raise UsageError(f"{name} has shape {values.shape}; it needs one weight for each of {size} points.")
    if not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise UsageError(f"{name} must hold finite weights, none negative and not all zero.")
    return values
