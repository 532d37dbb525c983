"""A pair on its way to a distance, and how silos are asked about many pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anabranch.federation import Federation, Message
from anabranch.transport import Measure

Side = str | Measure  # a silo by its name, or a measure that the server holds


@dataclass(frozen=True)
class Round:
    """What the server saw in one round.

    `moved` is W(ξ, the ξ before), `bend` by which share the way over the ξ before was longer than the straight one;
    both where the settings have a tolerance, and in the last round.
    `bound` is A of FedWAD's Theorem 2 and `value` the distance by the ξ before; both only where silos reveal them.
    """

    number: int
    support: int
    moved: float | None
    bend: float | None
    value: float | None = None
    bound: float | None = None


@dataclass(eq=False)
class Comparison:
    """One pair on its way: its sides, ξ, and what the last round brought."""

    first: Side
    second: Side
    xi: Measure
    rounds: list[Round] = field(default_factory=list)
    ends: tuple[Measure, Measure] | None = None
    converged: bool = False

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.first, self.second


def ask(
    federation: Federation, comparisons: Sequence[Comparison], question: Callable[[list[Comparison]], Message]
) -> dict[tuple[int, int], tuple[Any, int]]:
    """Asks every silo one question about all comparisons it belongs to.

    Gives, for (comparison, side), the silo's reply and the place of the comparison in it.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for number, comparison in enumerate(comparisons):
        for side, who in enumerate(comparison.sides):
            if isinstance(who, str):
                places.setdefault(who, []).append((number, side))
    questions = {name: question([comparisons[number] for number, _ in found]) for name, found in places.items()}
    replies = federation.everyone(questions) if questions else {}
    return {place: (replies[name], k) for name, found in places.items() for k, place in enumerate(found)}


def stacked(measures: Sequence[Measure], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Points (P, S, d) and weights (P, S) of measures of one size."""
    points = torch.stack([m.points for m in measures]).to(dtype)
    return points, torch.stack([m.weight for m in measures]).to(dtype)


def key(side: Side) -> str | int:
    """By what a side is found again."""
    return side if isinstance(side, str) else id(side)


def size(federation: Federation, side: Side) -> int:
    """How many points it has."""
    return federation.sizes[side] if isinstance(side, str) else len(side)
