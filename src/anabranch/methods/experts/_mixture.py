"""Many experts as one conditional field, and samples of any combination from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from anabranch.data.attributes import NULL, AttributeSpace, Coverage
from anabranch.errors import UsageError, unknown
from anabranch.flow import Flow, integrate
from anabranch.flow.conditioning import Field, composed, conditioned, guided, strengths

WAYS = ("auto", "joint", "composed", "within", "guided")


class Rule(Protocol):
    """How much each expert counts at a point: (x (n, d), t, y (n, k), answers) → weights (n, experts), rows sum to one.

    `answers` gives the experts' own velocities (experts, n, d), for rules that look at them; calling it costs a pass
    of every expert.
    """

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, answers: Answers) -> Tensor: ...


class Answers(Protocol):
    """The velocities of all experts at the points in question (experts, n, d)."""

    def __call__(self) -> Tensor: ...


@dataclass(frozen=True)
class Mixture:
    """v(x, t, y) = Σ_e w_e(x, t, y) v_e(x, t, y): experts by silo, and the rule that weighs them.

    Whoever samples need not know which method trained the experts, or that there is more than one: a single flow is a
    mixture of one. `coverage` says which combinations are known, `device` where the experts are (None: wherever noise
    is drawn).
    """

    experts: Mapping[str, Field]
    coverage: Coverage
    rule: Rule
    device: torch.device | None = None

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        fields = list(self.experts.values())
        if len(fields) == 1:
            return fields[0](x, t, y)
        weight, kept = self._weigh(x, t, y)
        if kept is not None:
            return torch.einsum("ne,end->nd", weight, kept)
        return _weighted(fields, weight, x, t, y)

    def _weigh(self, x: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """What each expert counts (n, experts), and their answers, where the rule has asked for them."""
        kept: list[Tensor] = []

        def answers() -> Tensor:
            if not kept:
                kept.append(torch.stack([field(x, t, y) for field in self.experts.values()]))
            return kept[0]

        weight = self.rule(x, t, y, answers).to(x.dtype)
        return weight, kept[0] if kept else None

    def field(
        self, y: Tensor, how: str = "auto", weights: Sequence[float] | float | None = None, until: float = 1.0
    ) -> Field:
        """The field that samples of the labels y (n, k) follow.

        "joint" tells experts the whole label, "guided" sharpens that by one weight, "composed" adds up single
        attributes by eq. (5) with `weights`, each from the experts that have met it. "within" lets every expert that
        has met all of them add up its own, and weighs these sums by the whole label; where there is none it composes.
        "auto" is joint for combinations that some silo holds and composed for those that none has seen. Weights end at
        the time `until`. Part of a label may be NULL: a single attribute, or none, is sampled as such.
        """
        if how not in WAYS:
            raise unknown("way of sampling", how, WAYS)
        self._check(y)
        only = next(iter(self.experts.values())) if len(self.experts) == 1 else self
        if how == "guided":
            return guided(only, _one_weight(weights), until)
        together: Field = composed(only, weights, until)  # an additive one at the price of one pass of its terms
        if how == "within" and only is self:
            return _divided(self._able(y), self._within(weights, until), together)
        joint = self.known(y) & (weights is None) if how == "auto" else torch.full((len(y),), how == "joint")
        return _divided(joint, self, together)

    def _within(self, weights: Sequence[float] | float | None, until: float) -> Field:
        """The sums of the experts, weighed by the whole label."""
        sums = [composed(field, weights, until) for field in self.experts.values()]
        return lambda x, t, y: _weighted(sums, self._weigh(x, t, y)[0], x, t, y)

    def _able(self, y: Tensor) -> Tensor:
        """Whether some expert has met all given attributes of a label (n, k), maybe not together."""
        found = torch.zeros(len(y), dtype=torch.bool)
        for silo in self.coverage.counts:
            met = [
                (code == NULL) | seen[code.clamp_min(0)]
                for code, seen in zip(y.cpu().T, self.coverage.seen(silo), strict=True)
            ]
            found |= torch.stack(met).all(0)
        return found

    def known(self, y: Tensor) -> Tensor:
        """Whether a label (n, k) is one that experts were trained on: a combination that a silo holds, or part of it
        with at most one attribute."""
        given = (y != NULL).sum(1).cpu()
        whole = given == y.shape[1]
        found = given <= 1
        if bool(whole.any()):
            rows = whole.nonzero()[:, 0]
            found[rows] = self.coverage.observed[self.coverage.space.encode(y[rows.to(y.device)].cpu())]
        return found

    def sample(
        self,
        y: Tensor,
        generator: torch.Generator,
        nfe: int | None = 50,
        solver: str = "midpoint",
        how: str = "auto",
        weights: Sequence[float] | float | None = None,
        dimension: int | None = None,
        x0: Tensor | None = None,
        until: float = 1.0,
    ) -> Flow:
        """A sample for each label y (n, k), from standard normal noise by the named solver.

        Noise is drawn where the generator is, so that a seed means the same everywhere, and taken to the experts.
        """
        if x0 is None:
            if dimension is None:
                raise UsageError("Give x0, or the dimension of the samples.")
            x0 = torch.randn(len(y), dimension, generator=generator, device=generator.device)
            x0 = x0.to(self.device or x0.device)
        return integrate(conditioned(self.field(y, how, weights, until), y.to(x0.device)), x0, nfe, solver)

    def _check(self, y: Tensor) -> None:
        """Refuses an outcome that no silo tells of."""
        space = self.coverage.space
        for place, ((name, outcomes), seen) in enumerate(zip(space.attributes, _seen(self.coverage), strict=True)):
            asked = torch.unique(y[:, place][y[:, place] != NULL])
            lost = [outcomes[code] for code in asked.tolist() if not seen[code]]
            if lost:
                small = any(self.coverage.withheld.values())
                raise UsageError(
                    f"No silo tells of a sample with {name}={lost[0]}, so nothing is known of it; sample what silos"
                    f" tell of.{' (A count below a smallest_group of a silo is told as 0.)' if small else ''}"
                )


def check_weights(space: AttributeSpace, how: str, weights: Sequence[float] | float | None, until: float) -> None:
    """Refuses what is asked for in vain: weights that `how` does not look at, or an end of weights without any."""
    if weights is not None and how == "joint":
        raise UsageError("Weights are of single attributes, which 'joint' does not add up; leave one of them out.")
    if isinstance(weights, Sequence) and len(weights) not in (1, space.k):
        raise UsageError(
            f"{len(weights)} weights were given; give one for all attributes, or {space.k}, in the order of"
            f" {', '.join(space.names)}."
        )
    if until != 1.0 and weights is None:
        raise UsageError(f"Weights are to end at t = {until}, and none are given; give some, or no end.")


def _one_weight(weights: Sequence[float] | float | None) -> float:
    """The weight of guidance, which is one for the whole label."""
    given = strengths(weights)
    if len(given) != 1:
        raise UsageError(f"{len(given)} weights were given, and guidance has one for the whole label; give one number.")
    return given[0]


def _seen(coverage: Coverage) -> list[Tensor]:
    """Of each attribute, whether any silo has met an outcome."""
    of_silos = [coverage.seen(silo) for silo in coverage.counts]
    return [torch.stack([seen[place] for seen in of_silos]).any(0) for place in range(coverage.space.k)]


def _divided(rows: Tensor, first: Field, second: Field) -> Field:
    """The first field for these rows (n,) of points, the second for the others."""
    if bool(rows.all()):
        return first
    if not bool(rows.any()):
        return second

    def both(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        answer, own = torch.empty_like(x), rows.to(x.device)
        answer[own] = first(x[own], _at(t, own), y[own])
        answer[~own] = second(x[~own], _at(t, ~own), y[~own])
        return answer

    return both


def _at(t: Tensor, rows: Tensor) -> Tensor:
    return t if t.dim() == 0 else t[rows]


def _weighted(fields: Sequence[Field], weight: Tensor, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Every expert is asked only about the points where it counts."""
    answer = torch.zeros_like(x)
    for number, field in enumerate(fields):
        rows = (weight[:, number] > 0).nonzero()[:, 0]
        if len(rows) == len(x):
            answer += weight[:, number, None] * field(x, t, y)
        elif len(rows):
            part = field(x[rows], _at(t, rows), y[rows])
            answer.index_add_(0, rows, weight[rows, number, None] * part)
    return answer
