"""Means over seeds of tidy rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.runs import Row


@dataclass(frozen=True)
class Value:
    """A mean over `count` seeds, and their sample standard deviation (0 for one seed)."""

    mean: float
    spread: float
    least: float
    most: float
    count: int


class Statistics:
    """Rows by problem, method, metric and number of evaluations. Bytes are added over silos and kinds first.

    >>> row = {"problem": "p", "method": "m", "seed": 0, "nfe": 1, "metric": "w2", "value": 1.0}
    >>> Statistics([row, {**row, "seed": 1, "value": 3.0}]).value("p", "m", "w2", 1).mean
    2.0
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._seeds: dict[tuple[str, str, str, int | None, bool], dict[int, float]] = {}
        self._silos: dict[tuple[str, str], set[str]] = {}
        for row in rows:
            adaptive = row.get("solver") == "dopri5"
            nfe = None if adaptive else row.get("nfe")  # an adaptive solver's count differs from seed to seed
            key = (row["problem"], row["method"], row["metric"], nfe, adaptive)
            seeds, seed, value = self._seeds.setdefault(key, {}), row.get("seed", 0), float(row["value"])
            if row["metric"].startswith("bytes_"):
                self._silos.setdefault(key[:2], set()).add(row["silo"])
                value += seeds.get(seed, 0.0)
            seeds[seed] = value
            if adaptive:
                self._seeds.setdefault((*key[:2], "adaptive_nfe", None, False), {})[seed] = float(row["nfe"])

    @property
    def problems(self) -> list[str]:
        """Every problem once, in the order of the rows."""
        return list(dict.fromkeys(key[0] for key in self._seeds))

    def methods(self, problem: str) -> list[str]:
        """The methods with rows on a problem: federated ones first."""
        names = dict.fromkeys(key[1] for key in self._seeds if key[0] == problem)
        return sorted(names, key=lambda name: self.pooled(problem, name))

    def silos(self, problem: str, method: str) -> list[str]:
        """The silos that messages went to, sorted."""
        return sorted(self._silos.get((problem, method), set()))

    def pooled(self, problem: str, method: str) -> bool:
        """Whether the method saw all data in one place."""
        return self.silos(problem, method) == ["pooled"]

    def has(self, metric: str) -> bool:
        """Whether any row is of this metric."""
        return any(key[2] == metric for key in self._seeds)

    def evaluations(self, metric: str, problem: str | None = None) -> list[int]:
        """The fixed numbers of evaluations (NFE) at which a metric was taken, rising."""
        return sorted({k[3] for k in self._seeds if k[2] == metric and k[3] is not None and problem in (None, k[0])})

    def value(
        self, problem: str, method: str, metric: str, nfe: int | None = None, adaptive: bool = False
    ) -> Value | None:
        """The mean over seeds; None where there is no row."""
        seeds = self._seeds.get((problem, method, metric, nfe, adaptive))
        if not seeds:
            return None
        values = list(seeds.values())
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
        return Value(mean, math.sqrt(variance), min(values), max(values), len(values))
