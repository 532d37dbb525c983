"""Optimal transport inside a batch: FFM-LOT when each silo does it, OT-CFM when all data is pooled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, batch, pair
from anabranch.data import Samples
from anabranch.errors import UsageError, unknown
from anabranch.transport import Plan, assignment, exact_plan, half_squared_cost, sample_pairs, sinkhorn

SOLVERS = ("exact", "sinkhorn")


@dataclass(frozen=True)
class MinibatchOT:
    """Pairs from the optimal plan between a batch of x0 and a batch of x1 (FFM, eq. 6, Algorithm 2).

    `solver` is "exact" or "sinkhorn" (with `epsilon`, in units of the mean cost of the batch). By default every point
    of both batches is used once; with `replacement`, pairs are drawn from the plan, as in the paper, which uses
    about 63 % of the points.

    With `within`, there is a plan for each label of the batch, between the points that have it and as many x0. So x0 is
    distributed as the source given any label, as a flow needs that is told labels; one plan for all would give each
    label the noise that lies closest to it.
    """

    solver: str = "exact"
    epsilon: float = 0.05
    replacement: bool = False
    within: bool = False

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise unknown("solver", self.solver, SOLVERS)
        if self.solver == "sinkhorn" and not self.epsilon > 0:
            raise UsageError(f"Sinkhorn needs a positive epsilon; {self.epsilon} was given.")

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs of one batch."""
        index = batch(data, size, generator)
        x1 = data.at(index, generator)
        x0 = source.points(size, generator).to(x1.device)
        if not self.within:
            return _paired(data, x0, x1, index, *self._solved(x0, x1, generator))
        labels = data.label[index]
        members = [(labels == value).nonzero()[:, 0].to(x1.device) for value in torch.unique(labels)]
        solved = [(rows, *self._solved(x0[rows], x1[rows], generator)) for rows in members]
        index0, partner = (torch.cat([part[0][part[side].to(x1.device)] for part in solved]) for side in (1, 2))
        return _paired(data, x0, x1, index, index0, partner)

    def _solved(self, x0: Tensor, x1: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which x0 (n,) meets which x1 (n,)."""
        cost, each = half_squared_cost(x0, x1), torch.arange(len(x0), device=x1.device)
        if self.solver == "exact" and not self.replacement:
            return each, assignment(cost)
        if self.replacement:
            plan = exact_plan(cost) if self.solver == "exact" else self._soft_plan(cost)
            drawn = sample_pairs(plan, len(x0), generator, replacement=True)
            return drawn.index0, drawn.index1
        # A soft plan has no permutation in it: every x0 is used once and draws its x1 from its own row.
        rows = self._soft_plan(cost).matrix.to(generator.device).clamp_min(0)
        return each, torch.multinomial(rows, 1, generator=generator)[:, 0]

    def _soft_plan(self, cost: Tensor) -> Plan:
        result = sinkhorn(cost, self.epsilon * float(cost.mean().clamp_min(1e-12)))
        return Plan(result.plan, result.cost)


def _paired(data: Samples, x0: Tensor, x1: Tensor, index: Tensor, index0: Tensor, partner: Tensor) -> Pairs:
    """x0[index0] with x1[partner], where x1 are the holder's points `index`."""
    return pair(data, x0, index0, x1[partner.to(x1.device)], index[partner.to(index.device)])
