"""Pictures and tables of the study `otdd`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from anabranch.recipes._study import Lines
from anabranch.report._style import FEDERATED, POOLED, SOFT, style
from anabranch.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"otdd": "exact OTDD", "fedwad": "FedWAD"}
AXES = {"rounds": "rounds K", "supports": "atoms S", "sizes": "samples of each set"}
BRIGHT = 0.55  # of the range of colours: from here on dark figures can be read


def draw(rows: list[Row], out: Path) -> dict[str, Path]:
    """What can be drawn of the rows that are there, by title."""
    there = {row["problem"] for row in rows}
    found: dict[str, tuple[str, Figure]] = {}
    with style():
        if "matrix" in there:
            found["Distances between image sets, exact and federated (Figure 6)"] = ("matrix", _matrices(rows))
        if panels := [problem for problem in ("rounds", "supports") if problem in there]:
            title = "Distance and time against rounds and atoms (Figure 13)"
            found[title] = ("parameters", _curves(rows, panels))
        if "sizes" in there:
            found["Distance and time against the number of samples (Figure 14)"] = ("sizes", _curves(rows, ["sizes"]))
        written = {}
        for title, (name, figure) in found.items():
            written[title] = out / f"{name}.png"
            figure.savefig(written[title], dpi=150, facecolor="white")
    return written


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """All pairs by every method, and how far each keeps their order; then the curves, a line for each x."""
    found: list[tuple[str, Lines]] = []
    values = _values([row for row in rows if row["problem"] == "matrix"])
    if values:
        methods = list(dict.fromkeys(method for method, metric, *_ in values if metric == "distance"))
        pairs = list(dict.fromkeys(pair for _, metric, pair, _ in values if metric == "distance"))
        lines = [["pair", *(NAMES.get(method, method) for method in methods)]]
        lines += [[pair, *(f"{fmean(values[m, 'distance', pair, None]):.2f}" for m in methods)] for pair in pairs]
        for metric in ("spearman", "kendall", "excess", "seconds"):
            seen = [values.get((method, metric, "", None)) for method in methods]
            lines.append([metric, *("–" if of is None else f"{fmean(of):.3g}" for of in seen)])
        found.append(("Distances between image sets; how far the order is kept, excess and seconds a pair", lines))
    for problem in AXES:
        values = _values([row for row in rows if row["problem"] == problem])
        keys = [key for key in values if key[1] == "distance"]
        if keys:
            lines = [["pair", "method", AXES[problem], "distance", "seconds"]]
            for method, _, pair, x in sorted(keys, key=lambda key: (key[2], key[0], key[3] or 0)):
                cells = [f"{fmean(values[method, metric, pair, x]):.3g}" for metric in ("distance", "seconds")]
                lines.append([pair, NAMES.get(method, method), str(x), *cells])
            found.append((f"Against {AXES[problem]}", lines))
    return found


def _values(rows: Sequence[Row]) -> dict[tuple[str, str, str, int | None], list[float]]:
    """What all seeds found, by method, metric, pair and x."""
    found: dict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
    for row in rows:
        found[row["method"], row["metric"], row.get("pair", ""), row.get("x")].append(row["value"])
    return dict(found)


def _matrices(rows: list[Row]) -> Figure:
    """A square for each method, all in one scale of colours."""
    from matplotlib.figure import Figure

    values = _values([row for row in rows if row["problem"] == "matrix" and row["metric"] == "distance"])
    methods = list(dict.fromkeys(method for method, *_ in values))
    names = list(dict.fromkeys(name for _, _, pair, _ in values for name in pair.split(" | ")))
    top = max(fmean(of) for of in values.values())
    figure = Figure(figsize=(3.3 * len(methods) + 0.8, 3.9), layout="constrained")
    grid = figure.subplots(1, len(methods), squeeze=False)[0]
    for axes, method in zip(grid, methods, strict=True):
        shown = np.zeros((len(names), len(names)))
        for (of, _, pair, _), found in values.items():
            first, second = (names.index(name) for name in pair.split(" | "))
            if of == method:
                shown[first, second] = shown[second, first] = fmean(found)
        image = axes.imshow(shown, cmap="viridis", vmin=0, vmax=top)
        for i, line in enumerate(shown):
            for j, value in enumerate(line):
                color = "black" if value > BRIGHT * top else "white"
                axes.text(j, i, f"{value:.1f}" if i != j else "0", ha="center", va="center", color=color, fontsize=9)
        axes.set_title(NAMES.get(method, method))
        axes.grid(False)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axes.set_yticks(range(len(names)), names if axes is grid[0] else [""] * len(names))
    figure.colorbar(image, ax=list(grid), shrink=0.8, label="OTDD")
    return figure


def _curves(rows: list[Row], problems: Sequence[str]) -> Figure:
    """A row of panels: distance above, time below, a column for each problem and pair."""
    from matplotlib.figure import Figure

    seen = dict.fromkeys((row["problem"], row["pair"]) for row in rows if row["problem"] in problems)
    columns = sorted(seen, key=lambda key: problems.index(key[0]))
    figure = Figure(figsize=(5.2 * len(columns), 6.4), layout="constrained")
    grid = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    for column, (problem, pair) in enumerate(columns):
        values = _values([row for row in rows if row["problem"] == problem and row.get("pair") == pair])
        for axes, metric in zip(grid[:, column], ("distance", "seconds"), strict=True):
            _panel(axes, values, metric)
        grid[0, column].set_title(pair.replace(" | ", " and "))
        grid[1, column].set_xlabel(AXES[problem])
        grid[1, column].set_yscale("log")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _panel(axes: Axes, values: dict[tuple[str, str, str, int | None], list[float]], metric: str) -> None:
    """One line a method, means over seeds; the exact one in grey."""
    methods = list(dict.fromkeys(method for method, of, *_ in values if of == metric))
    for number, method in enumerate(sorted(methods, key=lambda name: (name != "otdd", len(name), name))):
        points = sorted((x or 0, fmean(of)) for (m, k, _, x), of in values.items() if (m, k) == (method, metric))
        color = POOLED[1] if method == "otdd" else FEDERATED[(number - 1) % len(FEDERATED)]
        dash = "--" if method == "otdd" else "o-"
        axes.plot(*zip(*points, strict=True), dash, color=color, label=NAMES.get(method, method))
    ticks = sorted({x or 0 for _, of, _, x in values if of == metric})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{x:,}".replace(",", " ") for x in ticks], color=SOFT)
    axes.minorticks_off()
    axes.set_ylabel(metric)
