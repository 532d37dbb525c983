"""Checks: figures that a recipe must reach, computed from its rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from anabranch.errors import UsageError, unknown
from anabranch.runs import Row


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
    """Means over seeds, by (problem, method, metric, nfe)."""

    def __init__(self, rows: Iterable[Row]) -> None:
        values: dict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
        for row in rows:
            if row.get("solver", "euler") == "euler" and "silo" not in row:
                values[row["problem"], row["method"], row["metric"], row["nfe"]].append(row["value"])
        self.values = {key: sum(found) / len(found) for key, found in values.items()}
        # Of a mean over seeds; with one seed nothing is known of it.
        self.errors = {k: stdev(v) / math.sqrt(len(v)) if len(v) > 1 else math.nan for k, v in values.items()}
        self.problems = sorted({key[0] for key in self.values})
        self.methods = {key[1] for key in self.values}

    def __call__(self, problem: str, method: str, metric: str, nfe: int | None) -> float | None:
        """The mean, or None where the cell was not run."""
        return self.values.get((problem, method, metric, nfe))


def run_checks(declared: Sequence[Mapping[str, Any]], rows: Sequence[Row], scale: str) -> list[Check]:
    """Every check of this scale whose methods were run. One whose rows are missing altogether fails."""
    means = Means(rows)
    return [
        _check(entry, means)
        for entry in declared
        if scale in entry.get("scales", [scale]) and {entry["left"], *_others(entry)} <= means.methods
    ]


def _others(entry: Mapping[str, Any]) -> list[str]:
    right = entry.get("right", [])
    return [right] if isinstance(right, str) else list(right)


def _check(entry: Mapping[str, Any], means: Means) -> Check:
    if entry["kind"] not in KINDS:
        raise unknown("kind of check", entry["kind"], KINDS)
    cells = [
        (problem, nfe)
        for problem in entry.get("problems", means.problems)
        for nfe in entry.get("nfe", [None])
        if problem in means.problems and means(problem, entry["left"], _metric(entry), nfe) is not None
    ]
    values = [KINDS[entry["kind"]](entry, means, problem, nfe) for problem, nfe in cells]
    if "at_least" in entry:  # of wins their number, of anything else the least
        found = sum(values) if entry["kind"] == "wins" else min(values, default=math.inf)
        enough = math.isfinite(found) and found >= entry["at_least"]
        return Check(entry["name"], found, entry["at_least"], bool(values) and enough)
    if "limit" not in entry:
        raise UsageError(f"The check '{entry['name']}' has neither a limit nor an at_least.")
    worst = math.nan if any(math.isnan(value) for value in values) else max(values, default=None)
    return Check(entry["name"], worst, entry["limit"], worst is not None and worst <= entry["limit"])


def _metric(entry: Mapping[str, Any]) -> str:
    return str(entry.get("metric", "w2"))


def _pair(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> tuple[float, float]:
    """The left value, and the least of the right ones."""
    left = means(problem, entry["left"], _metric(entry), nfe)
    right = [means(problem, other, _metric(entry), nfe) for other in _others(entry)]
    known = [value for value in right if value is not None]
    if left is None or not known:
        return float("inf"), 1.0  # a comparison with nothing fails
    return left, min(known)


def _ratio(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    left, right = _pair(entry, means, problem, nfe)
    return left / right


def _relative(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    return abs(_ratio(entry, means, problem, nfe) - 1)


def _absolute(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    left, right = _pair(entry, means, problem, nfe)
    return abs(left - right)


def _wins(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    left, right = _pair(entry, means, problem, nfe)
    return float(left < right)


def _value(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    found = means(problem, entry["left"], _metric(entry), nfe)
    return float("inf") if found is None else found


def _excess(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    over = means(problem, entry["left"], str(entry["over"]), nfe)
    return float("inf") if over is None else _value(entry, means, problem, nfe) - over


def _errors(entry: Mapping[str, Any], means: Means, problem: str, nfe: int | None) -> float:
    """The value in standard errors over seeds."""
    value, error = _value(entry, means, problem, nfe), means.errors[problem, entry["left"], _metric(entry), nfe]
    return value / error if error else math.copysign(math.inf, value) if value else 0.0


KINDS: dict[str, Callable[[Mapping[str, Any], Means, str, int | None], float]] = {
    "ratio": _ratio,
    "relative": _relative,
    "absolute": _absolute,
    "wins": _wins,
    "value": _value,
    "excess": _excess,
    "errors": _errors,
}
