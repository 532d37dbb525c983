"""Line and dot charts: W2 against steps, the coupling, the bytes."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from anabranch.report._read import Comparison
from anabranch.report._statistics import Statistics
from anabranch.report._style import EXCHANGES, FAINT, SOFT, EndLabel, Look, label_ends, plain
from anabranch.report._table import number, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Looks = dict[str, Look]
DISTANCES = {"w2": "W₂ to the target", "sliced_w2": "sliced W₂ to held-out points"}


def distance_figure(comparison: Comparison, looks: Looks) -> Figure | None:
    """W2 against the number of evaluations, a panel a problem (FFM, Figure 3)."""
    statistics = comparison.statistics
    panels = [(p, m) for p in statistics.problems for m in DISTANCES if statistics.evaluations(m, p)]
    if not panels:
        return None
    figure, grid = _panels(len(panels), height=4.7)
    for axes, (problem, metric) in zip(grid, panels, strict=False):
        _distance_panel(axes, statistics, problem, metric, looks)
    return figure


def _distance_panel(axes: Axes, statistics: Statistics, problem: str, metric: str, looks: Looks) -> None:
    counts = statistics.evaluations(metric, problem)
    ends = []
    for method in statistics.methods(problem):
        look = looks[method]
        found = [(n, v) for n in counts if (v := statistics.value(problem, method, metric, n))]
        if not found:
            continue
        x, y = [n for n, _ in found], [v.mean for _, v in found]
        axes.plot(x, y, look.dash, color=look.color, marker=look.marker, markersize=4.5)
        if found[0][1].count > 1:
            band = ([v.least for _, v in found], [v.most for _, v in found])
            axes.fill_between(x, *band, color=look.color, alpha=0.13, linewidth=0)
        adaptive, at = (
            statistics.value(problem, method, metric, adaptive=True),
            statistics.value(problem, method, "adaptive_nfe"),
        )
        if adaptive and at:
            axes.plot(
                at.mean, adaptive.mean, marker="*", markersize=13, color=look.color, markeredgecolor="white", zorder=5
            )
        ends.append(EndLabel(method, x[-1], y[-1], look.color))
    axes.set_xscale("log")
    axes.set_yscale("log")
    _floor(axes, statistics, problem, f"{metric}_floor")
    plain_log(axes, counts)
    axes.set_title(plain(problem))
    axes.set_xlabel("Euler steps (NFE)")
    axes.set_ylabel(DISTANCES[metric])
    label_ends(axes, ends)


def _floor(axes: Axes, statistics: Statistics, problem: str, metric: str) -> None:
    floors = [v.mean for m in statistics.methods(problem) if (v := statistics.value(problem, m, metric))]
    if floors:
        level = float(np.mean(floors))
        axes.axhline(level, color=SOFT, linestyle=(0, (4, 3)), linewidth=1.1)
        axes.annotate(
            f"noise floor {number(level)}",
            xy=(0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(6, 4),
            textcoords="offset points",
            color=SOFT,
            fontsize=9,
        )
        axes.set_ylim(bottom=min(axes.get_ylim()[0], level / 1.25))


def coupling_figure(comparison: Comparison, looks: Looks) -> Figure | None:
    """Cost over the optimum, and the error of the source marginal against its floor; a row a problem."""
    statistics = comparison.statistics
    problems = [
        p for p in statistics.problems if any(statistics.value(p, m, "cost_ratio") for m in statistics.methods(p))
    ]
    if not problems:
        return None
    from matplotlib.figure import Figure

    heights = [0.3 * len(statistics.methods(p)) + 1.1 for p in problems]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    grid = figure.subplots(len(problems), 2, squeeze=False, height_ratios=heights)
    for row, problem in enumerate(problems):
        suffix = "" if len(problems) == 1 else f", {plain(problem)}"
        _dots(grid[row, 0], statistics, problem, "cost_ratio", looks)
        grid[row, 0].axvline(1.0, color=SOFT, linestyle=(0, (4, 3)), linewidth=1.1)
        grid[row, 0].set_title(f"cost of the pairs over the optimum{suffix}")
        _dots(grid[row, 1], statistics, problem, "source_error", looks, "source_error_floor")
        grid[row, 1].set_title(f"W₂ of the coupled noises to the source{suffix}")
        grid[row, 1].tick_params(labelleft=False)
    return figure


def _dots(axes: Axes, statistics: Statistics, problem: str, metric: str, looks: Looks, floor: str = "") -> None:
    methods = statistics.methods(problem)
    for height, method in enumerate(reversed(methods)):
        value, low = (statistics.value(problem, method, name) for name in (metric, floor))
        if value is None:
            continue
        if low is not None:
            axes.plot([low.mean] * 2, [height - 0.36, height + 0.36], color=SOFT, linewidth=1.4)
        axes.plot([value.least, value.most], [height] * 2, color=looks[method].color, linewidth=4, alpha=0.3)
        axes.plot(value.mean, height, marker=looks[method].marker, markersize=7.5, color=looks[method].color)
        at = (1.09, height)
        axes.annotate(number(value.mean), at, xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=9)
    axes.set_yticks(range(len(methods)), [plain(method) for method in reversed(methods)])
    for label, method in zip(axes.get_yticklabels(), reversed(methods), strict=True):
        label.set_color(looks[method].color)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.05)
    axes.xaxis.set_major_formatter(_formatter(lambda value: f"{value:g}"))
    if floor:
        axes.set_xlim(left=0)


def wire_figure(comparison: Comparison) -> Figure | None:
    """Megabytes a silo, down to the left and up to the right, stacked by exchange; a panel a problem."""
    bars = {p: found for p in comparison.problems if (found := _bars(comparison, p))}
    if not bars:
        return None
    totals: dict[str, float] = {}
    for bar in (bar for found in bars.values() for bar in found.values()):
        for exchange, (down, up) in bar.items():
            totals[exchange] = totals.get(exchange, 0.0) + down + up
    largest = sum(totals.values())
    named = sorted((e for e in totals if totals[e] >= 0.005 * largest), key=lambda e: -totals[e])[: len(EXCHANGES)]
    colors = dict(zip(named, EXCHANGES, strict=False))
    rows = max(len(found) for found in bars.values())
    figure, grid = _panels(len(bars), height=0.27 * rows + 1.35)
    for axes, (problem, found) in zip(grid, bars.items(), strict=False):
        _wire_panel(axes, found, colors)
        axes.set_title(plain(problem))
    handles = [_patch(color, exchange) for exchange, color in colors.items()]
    if len(named) < len(totals):
        handles.append(_patch(FAINT, "all others"))
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 6), fontsize=9)
    return figure


def _patch(color: str, label: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=color, label=plain(label))


def _bars(comparison: Comparison, problem: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Label → exchange → (down, up) in megabytes, a bar a method and silo; of many silos only their mean."""
    statistics, bars = comparison.statistics, {}
    for method in statistics.methods(problem):
        silos = statistics.silos(problem, method)
        if not silos or method in comparison.pooled:
            continue
        rows = [r for run in comparison.of(problem, method) for r in run.rows if r["metric"].startswith("bytes_")]
        seeds = len({row["seed"] for row in rows})
        groups = {f"{method}, {silo}": [silo] for silo in silos}
        if len(silos) > 4:
            groups = {f"{method}, mean of {len(silos)}": silos}
        for label, members in groups.items():
            bar: dict[str, tuple[float, float]] = {}
            for row in (row for row in rows if row["silo"] in members):
                exchange = row["kind"].removesuffix(".reply")
                down, up = bar.get(exchange, (0.0, 0.0))
                size = row["value"] / 1e6 / seeds / len(members)
                bar[exchange] = (down + size, up) if row["metric"] == "bytes_down" else (down, up + size)
            bars[label] = bar
    return bars


def _wire_panel(axes: Axes, bars: dict[str, dict[str, tuple[float, float]]], colors: dict[str, str]) -> None:
    for height, bar in enumerate(reversed(bars.values())):
        left = right = 0.0
        for exchange in [*colors, *(e for e in bar if e not in colors)]:
            down, up = bar.get(exchange, (0.0, 0.0))
            color = colors.get(exchange, FAINT)
            axes.barh(height, -down, left=-left, height=0.72, color=color)
            axes.barh(height, up, left=right, height=0.72, color=color)
            left, right = left + down, right + up
        for x, total, align in ((-left, left, "right"), (right, right, "left")):
            offset = (-5, 0) if align == "right" else (5, 0)
            axes.annotate(
                short(total), (x, height), offset, textcoords="offset points", ha=align, va="center", fontsize=8.5
            )
    axes.set_yticks(range(len(bars)), [plain(label) for label in reversed(bars)])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.axvline(0, color="white", linewidth=2.5)
    axes.grid(axis="y", visible=False)
    reach = 1.25 * max(abs(limit) for limit in axes.dataLim.intervalx)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(_formatter(lambda size: f"{abs(size):g}"))
    for x, text, align in ((0.0, "← MB down to the silo", "left"), (1.0, "MB up to the server →", "right")):
        axes.annotate(
            text, (x, 0), (0, -28), "axes fraction", "offset points", color=SOFT, ha=align, va="center", fontsize=9.5
        )


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Up to two panels side by side; one stands alone at two thirds of the width."""
    from matplotlib.figure import Figure

    columns = min(count, 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(11.0 if columns > 1 else 7.6, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes


def plain_log(axes: Axes, counts: list[int] | None) -> None:
    """Ticks in plain figures: matplotlib's powers of ten would need formulas."""
    from matplotlib.ticker import NullLocator

    if counts is not None:
        ticks = [count for count in counts if count in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)] or counts
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    marks = round_marks(*axes.get_ylim())
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.yaxis.set_minor_locator(NullLocator())


def round_marks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, three to nine: two would not tell that steps are unequal.

    >>> round_marks(40.0, 400.0), round_marks(60.0, 130.0)
    ([50.0, 100.0, 200.0], [60.0, 80.0, 100.0, 120.0])
    """
    from matplotlib.ticker import MaxNLocator

    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        marks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        shown = [mark for mark in marks if low <= mark <= high]
        if len(shown) > 2:
            return shown[:: -(-len(shown) // 9)]
    even = [float(f"{mark:.12g}") for mark in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    return [mark for mark in even if low <= mark <= high]


def _formatter(text: Callable[[float], str]) -> Callable[[float, float], str]:
    return lambda value, _: text(value)
