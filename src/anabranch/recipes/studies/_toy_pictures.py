"""Pictures and tables of the study `toy`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.recipes._recipe import recipe
from anabranch.recipes._study import Lines, beside
from anabranch.report._style import FAINT, FEDERATED, INK, POOLED, SOFT, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "emd": "POT's emd2, pooled",
    "exact": "exact interpolation",
    "s2": "S = 2",
    "s10": "S = 10",
    "s100": "S = 100",
    "s100-bounded": "S = 100 with bounds",
}
COLORS = {"emd": POOLED[1], **dict(zip(list(NAMES)[1:], FEDERATED, strict=False))}
MARKERS = {"emd": "D", "exact": "s", "s2": "v", "s10": "o", "s100": "^", "s100-bounded": "P"}
AXES = {
    "seconds": "seconds",
    "error": "error to the closed form",
    "excess": "excess over emd2",
}
ROUNDS = "Rounds with t = ½, exact and with S atoms: least excess over emd2"
SMALLEST = 1e-6  # relative error, or seconds, that a picture shows
ROUNDS_SHOWN = (0, 1, 2, 3, 5, 10, 20)
Curves = dict[tuple[str, str, str], tuple[list[float], list[float]]]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """What can be drawn of the rows and arrays that are there, by title."""
    curves = _curves(rows)
    there = {problem for problem, _, _ in curves}
    paths = {folder.parent.name: folder for folder in folders if (folder / "path.npz").exists()}
    draws = {folder.parents[1].name: folder for folder in folders if (folder / "draws.npz").exists()}
    found: dict[str, tuple[str, Figure]] = {}
    with style():
        if plain := [problem for problem in ("2d", "50d") if problem in there]:
            title = "Time and error against the number of samples (Figures 2 and 9)"
            found[title] = ("sizes", _sizes(curves, [[problem] for problem in plain], list(AXES), list(NAMES)))
        if pairs := [[p, f"{p}-1to3"] for p in ("2d", "50d") if {p, f"{p}-1to3"} <= there]:
            title = "Samples of equal size, and one a third of the other (Figure 8)"
            found[title] = ("ratios", _sizes(curves, pairs, ["seconds", "error"], ["emd", "exact", "s10"]))
        if paths:
            found["The interpolating measure ξ, round after round (Figure 3)"] = (
                "evolution",
                _evolution(curves, paths),
            )
        if draws:
            found["The three values against the exact distance, in high dimension"] = ("bounds", _bounds(draws))
        written = {}
        for title, (name, figure) in found.items():
            written[title] = out / f"{name}.png"
            figure.savefig(written[title], dpi=150, facecolor="white")
    return written


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Sizes at 1 000 points and at the largest of each method, the best of all rounds, and the rest as it is."""
    found = []
    sizes = [row for row in rows if "x" in row and row["problem"].startswith(("2d", "50d"))]
    last: dict[tuple[str, str], float] = {}
    for row in sizes:
        last[row["problem"], row["method"]] = max(row["x"], last.get((row["problem"], row["method"]), 0))
    chosen = [row for row in sizes if row["x"] in (1000, last[row["problem"], row["method"]])]
    if chosen:
        found.append(("Gaussians; x is the number of samples", beside(chosen, [])))
    rest: dict[str, list[Row]] = {
        ROUNDS: [row for row in rows if row["metric"] == "best_excess"],
        "High dimension": [row for row in rows if row["problem"] in ("draws-50d", "digits")],
        "Numbers on the wire; x is the number of samples": [r for r in rows if r["problem"].startswith("traffic")],
    }
    published = {ROUNDS: recipe("fedwad-toy").published}
    return found + [(title, beside(part, published.get(title, []))) for title, part in rest.items() if part]


def _curves(rows: list[Row]) -> Curves:
    """(x, mean over seeds) by problem, method and metric."""
    values: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "x" in row:
            values[row["problem"], row["method"], row["metric"]][row["x"]].append(row["value"])
    return {key: (sorted(of), [float(np.mean(of[x])) for x in sorted(of)]) for key, of in values.items()}


def _sizes(curves: Curves, lines: list[list[str]], metrics: list[str], methods: list[str]) -> Figure:
    """A row of panels for each list of problems, a column for each metric; the second problem of a row is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 3.5 * len(metrics), 0.6 + 3.0 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), len(metrics), squeeze=False)
    for problems, row in zip(lines, panels, strict=True):
        for metric, axes in zip(metrics, row, strict=True):
            for method in methods:
                for problem, dash in zip(problems, ("-", ":"), strict=False):
                    _curve(
                        axes, curves.get((problem, method, metric)), method, dash, metric == "seconds" and dash == "-"
                    )
            axes.set(xscale="log", xlabel="samples", ylabel=AXES[metric], title=f"d = {problems[0][:-1]}")
            _scale(axes)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if len(lines[0]) > 1:
        from matplotlib.lines import Line2D

        handles += [Line2D([], [], color=SOFT, linestyle=dash) for dash in ("-", ":")]
        labels += ["sample ratio 1 : 1", "1 : 3"]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    return figure


def _curve(axes: Axes, curve: tuple[list[float], list[float]] | None, method: str, dash: str, named: bool) -> None:
    """One method's line; figures that are zero, or below it by rounding, have no place on a logarithmic axis."""
    shown = [(x, y) for x, y in zip(*curve, strict=True) if y > 0] if curve else []
    if shown:
        x, y = zip(*shown, strict=True)
        look: dict[str, Any] = {"color": COLORS[method], "marker": MARKERS[method], "markersize": 4.0}
        axes.plot(x, y, linestyle=dash, label=NAMES[method] if named else None, **look)


def _scale(axes: Axes) -> None:
    """A logarithmic axis where figures differ by powers of ten; what only rounding made is left out below."""
    low, high = axes.dataLim.intervaly
    if high > 10 * low:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(low / 2, SMALLEST))


def _evolution(curves: Curves, paths: dict[str, Path]) -> Figure:
    """ξ at some rounds for each method, and the excess at all of them."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * (len(paths) + 1) + 0.6, 3.6), layout="constrained")
    *panels, last = figure.subplots(1, len(paths) + 1)
    for axes, method in zip(panels, sorted(paths, key=list(NAMES).index), strict=True):
        arrays = RunFolder(paths[method]).load_arrays("path.npz")
        for name, text in (("first", "μ"), ("second", "ν")):
            axes.scatter(*arrays[name].T, s=5, color=FAINT)
            axes.annotate(text, arrays[name].mean(0), ha="center", va="center", color=INK, fontsize=14)
        shown = [k for k in ROUNDS_SHOWN if f"xi_{k}" in arrays]
        for place, number in enumerate(shown):
            color = colormaps["viridis"](0.95 - 0.95 * place / max(1, len(shown) - 1))
            axes.scatter(*arrays[f"xi_{number}"].T, s=7, color=color, label=f"round {number}", alpha=0.8)
        axes.set(title=NAMES[method], xlabel="x", ylabel="y", aspect="equal")
        _curve(last, curves.get(("evolution", method, "excess")), method, "-", True)
    for entry in recipe("fedwad-toy").published:
        if entry["problem"] == "evolution":
            last.axhline(entry["value"], color=COLORS[entry["method"]], linestyle="--", linewidth=1.0)
            text = f"paper's best, {'exact' if entry['method'] == 'exact' else 'approximate'}"
            corner: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
            last.annotate(text, (1, entry["value"]), fontsize=8, color=COLORS[entry["method"]], **corner)
    last.set(yscale="log", xlabel="round", ylabel=AXES["excess"], title="Error by round")
    last.legend(fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, markerscale=2.0)
    return figure


def _bounds(draws: dict[str, Path]) -> Figure:
    """Every draw: value, debiased value and lower bound over the exact distance."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(draws) + 0.4, 4.3), layout="constrained")
    looks: dict[str, dict[str, Any]] = {
        "value": {"color": FEDERATED[1], "marker": "^", "label": "value, never below"},
        "debiased": {"color": FEDERATED[0], "marker": "o", "label": "debiased, the best guess"},
        "lower": {"color": FEDERATED[2], "marker": "v", "label": "lower bound, never above"},
    }
    titles = {"draws-50d": "Gaussians, d = 50", "digits": "MNIST's digits, d = 784"}
    for axes, (problem, folder) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws.items(), strict=True):
        arrays = RunFolder(folder).load_arrays("draws.npz")
        truth = arrays["exact"]
        for name, look in looks.items():
            axes.scatter(truth, arrays[name], s=10, alpha=0.7, **look)
        ends = np.array([truth.min(), truth.max()])
        axes.plot(ends, ends, color=INK, linewidth=1.0, label="the truth")
        axes.set(title=titles.get(problem, problem), xlabel="exact distance", ylabel="FedWAD, S = 100")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(draws))
    return figure
