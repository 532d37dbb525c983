"""Checks: figures that a recipe must reach, computed from its rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from anabranch.errors import UsageError, unknown
from anabranch.runs import Row

Key = tuple[str, str, str, int | None]  # problem, method, metric, nfe


@dataclass(frozen=True)
class Check:
    """One figure: its value, the limit, and whether it holds."""

    name: str
    value: float | None
    limit: float
    ok: bool

    def record(self) -> dict[str, Any]:
        """As it is printed in JSON."""
        value = self.value if self.value is not None and math.isfinite(self.value) else None
        return {"name": self.name, "value": value, "limit": self.limit, "ok": self.ok}


class Means:
    """Means over seeds, by (problem, method, metric, nfe); of fixed Euler steps, and of all silos.

    Methods may have run on different seeds. What stands for itself is a mean over all seeds of its method. What is
    compared is a mean over those seeds that *both* sides have, so that no side is favoured by a lucky seed of its own;
    a row without a seed, which needed none, counts beside every seed.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.values: dict[Key, dict[int | None, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row.get("solver", "euler") == "euler" and "silo" not in row:
                key = (row["problem"], row["method"], row["metric"], row["nfe"])
                self.values[key][row.get("seed")].append(row["value"])
        self.problems = sorted({key[0] for key in self.values})
        self.methods = {key[1] for key in self.values}
        self.ran = {key[:2] for key in self.values}
        self.measured = {key[:3] for key in self.values}

    def __call__(self, *key: *Key) -> float | None:
        """The mean over all seeds, or None where there are no rows."""
        return mean(found) if (found := self._of(key)) else None

    def pair(self, left: Key, right: Key) -> tuple[float, float] | None:
        """Both means over the seeds that both have; None where they have none in common."""
        seeds = [set(self.values[key]) if key in self.values else set() for key in (left, right)]
        common = seeds[0] & seeds[1]
        if None in seeds[0] | seeds[1]:
            common |= seeds[0] | seeds[1]
        found = [self._of(key, common) for key in (left, right)]
        return (mean(found[0]), mean(found[1])) if all(found) else None

    def error(self, *key: *Key) -> float:
        """Of the mean over seeds; with one seed nothing is known of it."""
        found = self._of(key)
        return stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan

    def _of(self, key: Key, seeds: Collection[int | None] | None = None) -> list[float]:
        found = self.values.get(key, {})
        return [value for seed, values in found.items() if seeds is None or seed in seeds for value in values]


def run_checks(declared: Sequence[Mapping[str, Any]], rows: Sequence[Row], scale: str) -> list[Check]:
    """Every check of this scale whose methods were run.

    One whose rows are missing fails: altogether, on either side, or for some of its numbers of steps.
    """
    means = Means(rows)
    return [
        _check(entry, means)
        for entry in declared
        if scale in entry.get("scales", [scale]) and _methods(entry) <= means.methods
    ]


def _methods(entry: Mapping[str, Any]) -> set[str]:
    """Those that a check is about."""
    left = entry["left"]
    lefts = [left] if isinstance(left, str) else left
    return {*lefts, *(other for part in [entry, *entry.get("parts", [])] for other in _others(part))}


def _others(entry: Mapping[str, Any]) -> list[str]:
    right = entry.get("right", [])
    return [right] if isinstance(right, str) else list(right)


def _one_in_all(entry: Mapping[str, Any], means: Means) -> Check:
    """Of several methods that which does best in all parts of a check: by its worst part, over that part's limit."""
    shared = {name: value for name, value in entry.items() if name not in ("left", "parts")}

    def over(left: str, part: Mapping[str, Any]) -> float:
        found = _check({**shared, **part, "left": left}, means)
        return math.inf if found.value is None or math.isnan(found.value) else found.value / found.limit

    best = min(max(over(left, part) for part in entry["parts"]) for left in entry["left"])
    return Check(entry["name"], best, 1.0, best <= 1)


def _check(entry: Mapping[str, Any], means: Means) -> Check:
    if "parts" in entry:
        return _one_in_all(entry, means)
    if entry["kind"] not in KINDS:
        raise unknown("kind of check", entry["kind"], KINDS)
    values = [
        KINDS[entry["kind"]](entry, means, problem, nfe)
        for problem in _problems(entry, means)
        for nfe in entry.get("nfe", [None])
    ]
    if "at_least" in entry:  # of wins their number, of anything else the least
        whole = bool(values) and all(map(math.isfinite, values))  # infinite: beside nothing
        found = math.inf if not whole else sum(values) if entry["kind"] == "wins" else min(values)
        return Check(entry["name"], found, entry["at_least"], whole and found >= entry["at_least"])
    if "limit" not in entry:
        raise UsageError(f"The check '{entry['name']}' has neither a limit nor an at_least.")
    worst = math.nan if any(math.isnan(value) for value in values) else max(values, default=None)
    return Check(entry["name"], worst, entry["limit"], worst is not None and worst <= entry["limit"])


def _problems(entry: Mapping[str, Any], means: Means) -> list[str]:
    """Those that a check names, as far as its left method was run on them; else all in which that has the metric."""
    left = entry["left"]
    if "problems" in entry:
        return [problem for problem in entry["problems"] if (problem, left) in means.ran]
    return [problem for problem in means.problems if (problem, left, _metric(entry)) in means.measured]


def _metric(entry: Mapping[str, Any]) -> str:
    return str(entry.get("metric", "w2"))


def _pair(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> tuple[float, float] | None:
    """The left mean beside the right one; of several on the right beside that which is lowest, compared with it.

    None where any of them has no rows: a comparison with nothing fails, also where another one would stand in.
    """
    left = (problem, entry["left"], _metric(entry), nfe)
    found = [means.pair(left, (problem, other, _metric(entry), nfe)) for other in _others(entry)]
    known = [pair for pair in found if pair is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda pair: pair[1] - pair[0])


def _ratio(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    pair = _pair(entry, means, problem, nfe)
    return math.inf if pair is None else pair[0] / pair[1]


def _relative(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    return abs(_ratio(entry, means, problem, nfe) - 1)


def _difference(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    pair = _pair(entry, means, problem, nfe)
    return math.inf if pair is None else pair[0] - pair[1]


def _absolute(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    return abs(_difference(entry, means, problem, nfe))


def _wins(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    return float(_difference(entry, means, problem, nfe) < 0)


def _value(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    found = means(problem, entry["left"], _metric(entry), nfe)
    return float("inf") if found is None else found


def _excess(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    left = entry["left"]
    pair = means.pair((problem, left, _metric(entry), nfe), (problem, left, str(entry["over"]), nfe))
    return math.inf if pair is None else pair[0] - pair[1]


def _errors(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    """The value in standard errors over seeds."""
    value, error = _value(entry, means, problem, nfe), means.error(problem, entry["left"], _metric(entry), nfe)
    return value / error if error else math.copysign(math.inf, value) if value else 0.0


def mean(values: Sequence[float]) -> float:
    """The mean of figures of which there is at least one."""
    return sum(values) / len(values)


KINDS: dict[str, Callable[[Mapping[str, Any], Means, str, int | None], float]] = {
    "ratio": _ratio,
    "relative": _relative,
    "difference": _difference,
    "absolute": _absolute,
    "wins": _wins,
    "value": _value,
    "excess": _excess,
    "errors": _errors,
}
