"""How training went: losses phase by phase, and what phases of preparation watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anabranch.report._charts import Looks, plain_log
from anabranch.report._read import Comparison, Run
from anabranch.report._style import EndLabel, label_ends, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS = "flow-matching loss"
# What the first phase that logs it watches; several kinds of duals share a panel.
WATCHED = {"dual value of the coupling": ("dual", "semidual"), "χ² of the points' usage": ("chi_square",)}
PHASES = ("federated", "experts", "peers", "student")  # of compositions, in the order in which they train

Curve = tuple[list[float], list[float]]
Curves = dict[str, Curve]  # by method


def training_figure(comparison: Comparison, looks: Looks) -> Figure | None:
    """Loss over rounds, a column a phase, and what the preparation phases watch, smoothed; a row a problem."""
    rows = {problem: found for problem in comparison.problems if (found := _panels(comparison, problem))}
    if not rows:
        return None
    from matplotlib.figure import Figure

    columns = [title for title in _titles(comparison) if any(title in found for found in rows.values())]
    figure = Figure(figsize=(max(5.5, 3.65 * len(columns)), 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for line, (problem, found) in zip(grid, rows.items(), strict=True):
        for axes, title in zip(line, columns, strict=True):
            if title not in found:
                axes.set_axis_off()
                continue
            _panel(axes, found[title], looks, settles=title in WATCHED and "dual" in WATCHED[title])
            axes.set_title(title if len(rows) == 1 else f"{title}\n{plain(problem)}")
    return figure


def _titles(comparison: Comparison) -> dict[str, str]:
    """The title of each phase that logs a loss, in their order, and of all that is watched; to the phase, or nothing.

    Where there is one such phase it needs no name.
    """
    logged = {record["phase"]: None for run in comparison.runs for record in run.metrics if "loss" in record}
    phases = sorted(logged, key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES))
    losses = {LOSS if len(phases) == 1 else f"loss, {plain(phase)}": phase for phase in phases}
    return losses | dict.fromkeys(WATCHED, "")


def _panels(comparison: Comparison, problem: str) -> dict[str, Curves]:
    """By title, the curves of all methods that have one."""
    found = {}
    for title, phase in _titles(comparison).items():
        curves = {}
        for method in comparison.methods:
            runs = comparison.of(problem, method)
            points = [point for run in runs for point in _logged(run, WATCHED.get(title, ("loss",)), phase)]
            if points:
                curves[method] = _mean(points)
        if curves:
            found[title] = curves
    return found


def _logged(run: Run, names: tuple[str, ...], phase: str) -> list[tuple[int, float]]:
    """(round of the phase, value) of a phase, or, where none is named, of the first one that logs any of these."""
    phase = phase or next((r["phase"] for r in run.metrics if any(name in r for name in names)), "")
    first = next((i for i, r in enumerate(run.metrics) if r["phase"] == phase), 0)
    before = run.metrics[first - 1]["round"] if first else 0
    values = [(r["round"] - before, r[n]) for r in run.metrics if r["phase"] == phase for n in names if n in r]
    return [(round_, float(value)) for round_, value in values if np.isfinite(value)]


def _mean(points: list[tuple[int, float]]) -> Curve:
    """Rounds, and the mean over seeds in each, smoothed."""
    gathered: dict[int, list[float]] = {}
    for round_, value in points:
        gathered.setdefault(round_, []).append(value)
    rounds = sorted(gathered)
    means = np.array([np.mean(gathered[round_]) for round_ in rounds])
    return [float(round_) for round_ in rounds], _smooth(means).tolist()


def _smooth(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A centred moving average over a twentieth of the curve; the ends average over what there is."""
    width = max(1, len(values) // 20) | 1
    kernel = np.ones(width)
    weight = np.convolve(np.ones(len(values)), kernel, "same")
    return np.asarray(np.convolve(values, kernel, "same") / weight)


def _panel(axes: Axes, curves: Curves, looks: Looks, settles: bool) -> None:
    """Curves with their names at the right; of values that settle, the first rounds may lie outside."""
    ends = []
    for method, (x, y) in curves.items():
        look = looks[method]
        axes.plot(x, y, look.dash, color=look.color, linewidth=1.5, marker=look.marker if len(x) < 2 else "")
        ends.append(EndLabel(method, x[-1], y[-1], look.color))
    if settles:
        settled = [v for _, y in curves.values() for v in y[len(y) // 10 :]]
        low, high = min(settled), max(settled)
        margin = max(0.15 * (high - low), 0.05 * abs(high))
        axes.set_ylim(low - margin, high + margin)
    elif min(min(y) for _, y in curves.values()) > 0:
        axes.set_yscale("log")
        plain_log(axes, None)
        axes.set_ylabel("logarithmic", fontsize=9)
    axes.set_xlabel("round of its phase")
    axes.set_xlim(left=0)
    label_ends(axes, ends, gap=0.085)
