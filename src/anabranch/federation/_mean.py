"""Means of answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.federation._message import Message, numbers_of, with_numbers
from anabranch.federation._verdict import Verdict


@dataclass
class Mean:
    """A λ-weighted mean of answers: the aggregate, who is in it, and why others are not.

    With a `verdict` it may turn out to be not finite, and must not be used then; without one it is finite. `unsound`
    are those of the others whose numbers were not finite.
    """

    reply: Any
    answered: list[str]
    failures: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    unsound: frozenset[str] = frozenset()


def weighted_mean(replies: list[Message], share: list[float]) -> Message:
    """Every floating-point number averaged with the given shares; other fields are those of the first reply."""
    columns = [numbers_of(reply) for reply in replies]
    means = {name: share[0] * tensor for name, tensor in columns[0].items()}
    for weight, numbers in zip(share[1:], columns[1:], strict=True):
        means = {name: mean + weight * numbers[name] for name, mean in means.items()}
    return with_numbers(replies[0], means)
