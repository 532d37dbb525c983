"""The design matrix of main effects: which combinations follow from which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch import seeds

_PROBES = 4


def follows(combinations: Tensor, observed: Tensor, sizes: Sequence[int]) -> Tensor:
    """Whether each combination's row of the design matrix is in the span of the observed rows (|Y|,).

    The row of y is (1, e_{y_1}, …, e_{y_k}). It is in the span iff it is orthogonal to the null space N of the observed
    rows, and so, almost surely, iff it is orthogonal to one Gaussian vector in N: a few of them stand for all of N,
    which can have too many columns to multiply with every combination.

    >>> cross = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> follows(cross, torch.tensor([True, True, True, False]), (2, 2)).all()
    tensor(True)
    >>> follows(cross, torch.tensor([True, False, False, True]), (2, 2))
    tensor([ True, False, False,  True])
    """
    starts = torch.tensor([1, *sizes]).cumsum(0)[:-1]
    places = torch.cat([torch.zeros(len(combinations), 1, dtype=torch.long), combinations + starts], dim=1)
    values, vectors = torch.linalg.eigh(_gram(places[observed], 1 + sum(sizes)))
    null = vectors[:, values <= 1e-9 * max(float(values[-1]), 1.0)]
    if not null.shape[1]:  # not reached: the k + 1 ways to say the constant leave k directions at least
        return torch.ones(len(combinations), dtype=torch.bool)
    draws = torch.randn(null.shape[1], _PROBES, dtype=torch.float64, generator=seeds.generator(0, "design"))
    probes = null @ draws
    product = torch.zeros(len(places), _PROBES, dtype=torch.float64)
    for column in places.T:
        product += probes[column]
    return product.abs().amax(dim=1) <= 1e-6


def _gram(places: Tensor, width: int) -> Tensor:
    """AᵀA (width, width) of rows A that are one at their places and zero elsewhere."""
    gram = torch.zeros(width * width, dtype=torch.float64)
    for first in places.T:
        for second in places.T:
            gram += torch.bincount(first * width + second, minlength=width * width)
    return gram.reshape(width, width)


@dataclass(frozen=True)
class Group:
    """Outcomes of two attributes that observed combinations connect."""

    rows: list[int]
    columns: list[int]


def groups(observed: Tensor) -> list[Group]:
    """The connected parts of the bipartite graph whose edges are the observed cells (|Y1|, |Y2|).

    Two main effects are determined within a part, and between parts not. Outcomes that were never seen are left out.

    >>> groups(torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 0]]).bool())
    [Group(rows=[0, 1], columns=[0]), Group(rows=[2], columns=[1])]
    """
    left = observed.any(dim=1)
    found = []
    while bool(left.any()):
        rows = torch.zeros_like(left)
        rows[left.nonzero()[0, 0]] = True
        while True:
            columns = observed[rows].any(dim=0)
            wider = observed[:, columns].any(dim=1)
            if bool((wider == rows).all()):
                break
            rows = wider
        left &= ~rows
        found.append(Group(rows.nonzero()[:, 0].tolist(), columns.nonzero()[:, 0].tolist()))
    return found
