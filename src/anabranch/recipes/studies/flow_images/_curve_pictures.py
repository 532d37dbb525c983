"""Pictures of flows of images while they train: against minutes, and against rounds for every number of steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.recipes._names import metric_name
from anabranch.recipes.studies.flow_images._axes import Axis, Line, Lines, short, small_multiples
from anabranch.recipes.studies.flow_images._curve import MINUTES, PREFIX, ROUNDS
from anabranch.recipes.studies.flow_images._rows import Column, euler_steps, order, steps_name
from anabranch.runs import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curve_figures(problem: str, rows: list[Row], metric: str, out: Path) -> Iterator[tuple[str, Path, Figure]]:
    """Title, file and figure of each picture of a problem's curves in a metric, as many as its rows allow."""
    own = [row for row in rows if row["metric"] == PREFIX + metric]
    methods, name = order(rows, "method"), metric_name(metric)
    timed, counted = ([row for row in own if key in row] for key in (MINUTES, ROUNDS))
    if timed:
        title = f"{problem}: {name} against minutes of training"
        yield title, out / f"minutes-{problem}.png", _against_minutes(timed, metric, methods)
    if counted:
        title = f"{problem}: {name} against rounds of training"
        yield title, out / f"rounds-{problem}.png", _against_rounds(counted, metric, methods)
    if len({row["nfe"] for row in counted}) > 1:
        title = f"{problem}: {name} against the number of steps, while training"
        yield title, out / f"steps-by-rounds-{problem}.png", _against_steps(counted, metric, methods)


def _against_minutes(rows: list[Row], metric: str, methods: list[str]) -> Figure:
    """A panel for each number of steps; methods stand at the minutes that they had really trained by then."""
    marks = _marks(rows, MINUTES)
    panels: dict[str, Lines] = {}
    for nfe in euler_steps(rows, PREFIX + metric):
        columns = [Column("", PREFIX + metric, nfe, minutes=mark) for mark in marks]
        clocks = [Column("", PREFIX + metric, nfe, minutes=mark, key="seconds") for mark in marks]
        panels[steps_name(nfe)] = {
            method: _line(rows, method, columns, [(clock.mean(rows, method) or 0.0) / 60 for clock in clocks])
            for method in order(rows, "method")
        }
    return small_multiples(panels, methods, Axis(f"minutes of training{_drawn(rows)}", marks), metric_name(metric))


def _against_rounds(rows: list[Row], metric: str, methods: list[str]) -> Figure:
    """A panel for each number of steps (FFM, Figures 5 and 8, with three)."""
    marks = _marks(rows, ROUNDS)
    panels: dict[str, Lines] = {}
    for nfe in euler_steps(rows, PREFIX + metric):
        columns = [Column("", PREFIX + metric, nfe, rounds=mark) for mark in marks]
        panels[steps_name(nfe)] = {method: _line(rows, method, columns, marks) for method in order(rows, "method")}
    return small_multiples(panels, methods, Axis(f"rounds of training{_drawn(rows)}", marks), metric_name(metric))


def _against_steps(rows: list[Row], metric: str, methods: list[str]) -> Figure:
    """A panel for each number of rounds (FFM, Figure 6)."""
    steps = [float(nfe) for nfe in euler_steps(rows, PREFIX + metric)]
    panels: dict[str, Lines] = {}
    for mark in _marks(rows, ROUNDS):
        columns = [Column("", PREFIX + metric, round(nfe), rounds=mark) for nfe in steps]
        panels[f"after {short(mark)} rounds"] = {
            method: _line(rows, method, columns, steps) for method in order(rows, "method")
        }
    return small_multiples(panels, methods, Axis(f"Euler steps{_drawn(rows)}", steps), metric_name(metric))


def _line(rows: list[Row], method: str, columns: list[Column], places: list[float]) -> Line:
    """Means over seeds where there are any."""
    found = [column.mean(rows, method) for column in columns]
    known = [(place, value) for place, value in zip(places, found, strict=True) if value is not None]
    return Line([place for place, _ in known], [value for _, value in known])


def _marks(rows: list[Row], key: str) -> list[float]:
    return sorted({float(row[key]) for row in rows})


def _drawn(rows: list[Row]) -> str:
    return f" ({rows[0]['images']} samples)"
