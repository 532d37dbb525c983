"""Rows of the study `flow_images`, found by what a table or a picture shows of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from anabranch.recipes.studies.flow_images._sampling import ADAPTIVE
from anabranch.runs import Row


@dataclass(frozen=True)
class Column:
    """What a column shows: of rows of a metric, a number of Euler steps, or dopri5, and of a curve's minutes or rounds,
    the value or `key`."""

    heading: str
    metric: str
    nfe: int | None = None
    minutes: float | None = None
    rounds: float | None = None
    solver: str = "euler"
    key: str = "value"

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that belong here; dopri5 has as many evaluations as it took."""
        return [
            row
            for row in rows
            if (row["metric"], solver(row)) == (self.metric, self.solver)
            and (row.get("minutes"), row.get("flow_rounds")) == (self.minutes, self.rounds)
            and (self.solver == ADAPTIVE or row.get("nfe") == self.nfe)
        ]

    def mean(self, rows: Iterable[Row], method: str) -> float | None:
        """Over the seeds of a method; None where there are no rows."""
        found = [row[self.key] for row in self.of(rows) if row["method"] == method]
        return fmean(found) if found else None


def steps_name(nfe: int) -> str:
    """For people."""
    return f"{nfe} step{'s' if nfe > 1 else ''}"


def euler_steps(rows: Iterable[Row], metric: str) -> list[int]:
    """The numbers of Euler steps that a metric has rows of, rising."""
    return sorted({row["nfe"] for row in rows if row["metric"] == metric and solver(row) != ADAPTIVE})


def solver(row: Row) -> str:
    """Of a row, the paper's or ours; Euler goes without saying."""
    return str(row.get("solver", "euler"))


def order(rows: Iterable[Row], key: str) -> list[str]:
    """The values of a key, each once, as they come."""
    return list(dict.fromkeys(row[key] for row in rows))
