"""Who takes part in a round, and how much each silo counts: λ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from anabranch.errors import UsageError, unknown

WEIGHTINGS = ("size", "uniform")


def weights(rule: str | Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """λ for every silo: by its number of points ("size"), "uniform", or as given; positive, summing to one.

    >>> weights("size", {"a": 30, "b": 10})
    {'a': 0.75, 'b': 0.25}
    """
    names = sorted(sizes)
    if isinstance(rule, str):
        if rule not in WEIGHTINGS:
            raise unknown("weighting", rule, WEIGHTINGS)
        share = {name: float(sizes[name]) if rule == "size" else 1.0 for name in names}
        return {name: share[name] / sum(share.values()) for name in names}
    if set(rule) != set(names):
        odd = ", ".join(sorted(set(rule) ^ set(names)))
        raise UsageError(f"Weights were given for other silos than there are ({odd}); name each silo once.")
    for name in names:
        if not math.isfinite(rule[name]) or rule[name] <= 0:
            raise UsageError(f"The weight of silo '{name}' is {rule[name]}; weights must be positive numbers.")
    if abs(sum(rule.values()) - 1) > 1e-6:
        raise UsageError(f"The weights sum to {sum(rule.values()):.6g}; they must sum to one.")
    return {name: float(rule[name]) for name in names}


@dataclass(frozen=True)
class Participation:
    """Which silos are asked in a round: "all", `count` "random" ones, or `count` drawn with chances by λ ("weighted").

    With `unbiased`, a round's λ are divided by the silo's chance to be in it, so that the expected aggregate is
    that of all silos; otherwise the λ of those who answered are renormalised to one. Silos drawn by weight count
    equally, since λ has already spoken.
    """

    rule: str = "all"
    count: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        if self.rule not in ("all", "random", "weighted"):
            raise unknown("participation", self.rule, ("all", "random", "weighted"))
        if self.rule != "all" and (self.count is None or self.count < 1):
            raise UsageError(f"Participation '{self.rule}' needs a count of at least 1; {self.count} was given.")
        if self.rule == "weighted" and self.unbiased and self.count != 1:
            raise UsageError(
                "Several silos drawn by weight and without repetition are not quite unbiased; for an unbiased aggregate"
                " take participation 'random', or a count of 1."
            )

    def choose(self, weight: Mapping[str, float], generator: torch.Generator) -> list[str]:
        """The names asked this round, sorted."""
        names = sorted(weight)
        if self.rule == "all" or self.count is None:
            return names
        if self.count > len(names):
            raise UsageError(f"{self.count} silos a round were asked for; there are only {len(names)}.")
        chance = torch.tensor([weight[name] if self.rule == "weighted" else 1.0 for name in names])
        chosen = torch.multinomial(chance, self.count, generator=generator)
        return sorted(names[i] for i in chosen.tolist())

    def share(self, weight: Mapping[str, float], answered: Sequence[str]) -> list[float]:
        """How much each of those who answered counts in the aggregate."""
        if self.rule == "weighted":
            return [1 / len(answered)] * len(answered)
        if self.unbiased and self.rule == "random":
            return [weight[name] * len(weight) / len(answered) for name in answered]
        total = sum(weight[name] for name in answered)
        return [weight[name] / total for name in answered]
