"""Pictures and tables of the study `flow_images`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from anabranch.recipes._names import metric_name
from anabranch.recipes._study import Lines
from anabranch.report._sheets import sheets_figure, sheets_of
from anabranch.report._style import FEDERATED, MARKERS, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = 25  # images of each number of steps
BY_STEPS = ("fid_train", "fid_test", "kid_train", "kid_test", "pixels_train", "pixels_test", "seconds_50k")


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Of each problem and measure: methods down, numbers of steps across; last what training cost."""
    found = []
    for problem in _order(rows, "problem"):
        own = [row for row in rows if row["problem"] == problem]
        for metric in (name for name in BY_STEPS if any(row["metric"] == name for row in own)):
            steps = sorted({row["nfe"] for row in own if row["metric"] == metric})
            lines = [["method", *(f"{n} step{'s' if n > 1 else ''}" for n in steps)]]
            for method in _order(own, "method"):
                values = [_mean(own, method, metric, n) for n in steps]
                lines.append([method, *("–" if value is None else f"{value:.4g}" for value in values)])
            found.append((f"{problem}: {metric_name(metric)}", lines))
        found.append((f"{problem}: training", _cost(own)))
    return found


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Of each problem: distance against steps, and sheets of samples of every method's first seed."""
    written: dict[str, Path] = {}
    for problem in _order(rows, "problem"):
        own = [row for row in rows if row["problem"] == problem]
        for metric in (name for name in ("fid_test", "pixels_test") if any(row["metric"] == name for row in own)):
            path = out / f"steps-{problem}.png"
            with style():
                _curves(own, metric).savefig(path, dpi=150, facecolor="white")
            written[f"{problem}: {metric_name(metric)} against the number of steps"] = path
        sheets = {}
        for folder in folders:
            method = folder.parents[0].name
            if folder.parents[1].name == problem and (folder / "samples.npz").exists() and method not in sheets:
                sheets[method] = sheets_of(RunFolder(folder).load_arrays("samples.npz"))
        if sheets:
            path = out / f"samples-{problem}.png"
            sheets_figure(sheets).savefig(path, dpi=150, facecolor="white")
            written[f"{problem}: samples, from the same noise"] = path
    return written


def _curves(rows: list[Row], metric: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(_order(rows, "method")):
        steps = sorted({row["nfe"] for row in rows if (row["method"], row["metric"]) == (method, metric)})
        values = [_mean(rows, method, metric, n) or 0.0 for n in steps]
        look: dict[str, Any] = {"color": FEDERATED[number % len(FEDERATED)], "marker": MARKERS[number % len(MARKERS)]}
        axes.plot(steps, values, label=method, markersize=5, **look)
    axes.set(xscale="log", yscale="log", xlabel="Euler steps", ylabel=metric_name(metric))
    every = sorted({row["nfe"] for row in rows if row["metric"] == metric})
    axes.set_xticks(every, [str(number) for number in every])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    marks = [mark for power in range(-3, 5) for mark in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
    shown = [mark for mark in marks if low <= mark <= high]
    axes.set_yticks(shown, [f"{mark:g}" for mark in shown])
    axes.legend()
    return figure


def _cost(rows: list[Row]) -> Lines:
    metrics = [name for name in _order(rows, "metric") if name not in BY_STEPS and "_error" not in name]
    metrics = [name for name in metrics if any(r["metric"] == name and r["nfe"] is None for r in rows)]
    lines = [["method", *map(metric_name, metrics)]]
    for method in _order(rows, "method"):
        values = [_mean(rows, method, metric, None) for metric in metrics]
        lines.append([method, *("–" if value is None else f"{value:.4g}" for value in values)])
    return lines


def _mean(rows: list[Row], method: str, metric: str, nfe: int | None) -> float | None:
    found = [r["value"] for r in rows if (r["method"], r["metric"], r["nfe"]) == (method, metric, nfe)]
    return fmean(found) if found else None


def _order(rows: list[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))
