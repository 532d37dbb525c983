"""Is a coupling cheap, and does it keep its marginals?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.metrics._points import same_space
from anabranch.metrics._wasserstein import wasserstein2
from anabranch.transport import exact_cost


def cost_ratio(x0: Tensor, x1: Tensor, optimal_cost: float) -> float:
    """mean ½‖x0 − x1‖² over the pairs (n, ...), divided by the optimal cost; 1 is optimal.

    Clearly below 1 there is no such coupling: one of its marginals is wrong.

    >>> cost_ratio(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]), optimal_cost=2.5)
    1.0
    """
    if not 0 < optimal_cost < math.inf:
        raise UsageError(
            f"A ratio to the optimal cost needs a positive one, not {optimal_cost}. "
            "Give optimal_cost(x0, x1) of two sets that differ."
        )
    first, second = same_space(x0, x1, ("x0", "x1"))
    if first.shape != second.shape:
        raise UsageError(
            f"Pairs need as many x0 as x1, but there are {first.shape[0]} and {second.shape[0]}. "
            "Give the coupled points, row by row."
        )
    return float((first - second).square().sum(dim=1).mean()) / 2 / optimal_cost


def optimal_cost(x0: Tensor, x1: Tensor) -> float:
    """min_π Σ_ij π_ij ½‖x0_i − x1_j‖², exact, between equally weighted points (n, ...) and (m, ...).

    The optimum between finite sets estimates the one between their distributions from n and m draws:
    compare costs on sets of one size.
    """
    return float(exact_cost(*same_space(x0, x1, ("x0", "x1"))))


def usage(index: Tensor, count: int) -> Tensor:
    """How often each of `count` points was drawn: frequencies (count,) of an index (draws,), in float64.

    >>> usage(torch.tensor([0, 0, 2, 1]), 4)
    tensor([0.5000, 0.2500, 0.2500, 0.0000], dtype=torch.float64)
    """
    if index.dim() != 1 or index.numel() == 0 or index.is_floating_point():
        raise UsageError(
            f"An index is a row of whole numbers, not {tuple(index.shape)} of {index.dtype}. "
            "Give (draws,), at least one draw."
        )
    if int(index.min()) < 0 or int(index.max()) >= count:
        raise UsageError(
            f"The index runs from {int(index.min())} to {int(index.max())}, but the {count} points are "
            "numbered from 0. Give the number of points that the index points into."
        )
    return torch.bincount(index, minlength=count).to(torch.float64) / index.numel()


def total_variation_from_uniform(index: Tensor, count: int) -> float:
    """½ Σ_j |usage_j − 1/count|: the share of draws that would have to move for all points to be used alike.

    Zero for a balanced index, 1 − 1/count when one point took everything. Chance alone gives
    `uniform_total_variation`.
    """
    return float((usage(index, count) - 1 / count).abs().sum()) / 2


def uniform_total_variation(count: int, draws: int) -> float:
    """The exact expectation of the total variation from uniform when `draws` points are drawn uniformly.

    Each draw is independent, from `count` points. With X ~ Binomial(draws, p), p = 1/count: count · E|X −
    draws·p| / (2 draws), where (de Moivre 1730) E|X − np| = 2 ν C(n, ν) p^ν (1 − p)^(n − ν + 1), ν = ⌊np⌋ +
    1.

    >>> round(uniform_total_variation(1000, 20_000), 3)
    0.089
    """
    if count < 1 or draws < 1:
        raise UsageError(f"There is no frequency in {draws} draws from {count} points. Give one or more of each.")
    if count == 1:
        return 0.0
    above = draws // count + 1
    logarithm = (
        math.lgamma(draws + 1) - math.lgamma(above + 1) - math.lgamma(draws - above + 1) - above * math.log(count)
    ) + (draws - above + 1) * math.log1p(-1 / count)
    return count * above * math.exp(logarithm) / draws


def source_marginal_error(x0: Tensor, reference: Tensor) -> float:
    """W2 between the x0 that a coupling drew (n, ...) and fresh points (m, ...) of the source.

    A coupling that keeps its source marginal stays at the noise floor of two fresh sets of those sizes.
    """
    return wasserstein2(x0, reference)
