"""Pictures of the study `flow_images`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.recipes._names import metric_name
from anabranch.recipes.studies._flow_images_curve import PREFIX
from anabranch.recipes.studies._flow_images_rows import Column, euler_steps, order, solver
from anabranch.recipes.studies._flow_images_sampling import ADAPTIVE
from anabranch.recipes.studies._flow_images_tables import published, tables
from anabranch.report._sheets import sheets_figure, sheets_of
from anabranch.report._style import FEDERATED, MARKERS, plain, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KEPT", "draw", "published", "tables"]
KEPT = 25  # images of each number of steps
DRAWN = ("fid_test", "pixels_test")
Points = tuple[list[float], list[float]]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Of each problem: distance against steps and minutes, and sheets of samples of every method's first seed."""
    written: dict[str, Path] = {}
    for problem in order(rows, "problem"):
        own = [row for row in rows if row["problem"] == problem]
        known = set(order(own, "metric"))
        for metric in (name for name in DRAWN if name in known):
            path = out / f"steps-{problem}.png"
            _save(path, own, metric, _against_steps)
            written[f"{problem}: {metric_name(metric)} against the number of steps"] = path
        for metric in (name for name in DRAWN if PREFIX + name in known):
            path = out / f"minutes-{problem}.png"
            _save(path, own, metric, _against_minutes)
            written[f"{problem}: {metric_name(metric)} against minutes of training"] = path
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


def _save(path: Path, rows: list[Row], metric: str, figure: Any) -> None:
    with style():
        figure(rows, metric).savefig(path, dpi=150, facecolor="white")


def _against_steps(rows: list[Row], metric: str) -> Figure:
    """A line for each method; a star is dopri5, at the evaluations that it took."""
    figure, axes = _empty()
    steps = euler_steps(rows, metric)
    stars = Column("", metric, solver=ADAPTIVE), Column("", metric, solver=ADAPTIVE, key="nfe")
    curves: dict[str, Points] = {}
    for number, method in enumerate(order(rows, "method")):
        found = {nfe: Column("", metric, nfe).mean(rows, method) for nfe in steps}
        known = {float(nfe): value for nfe, value in found.items() if value is not None}
        curves[method] = (list(known), list(known.values()))
        value, evaluations = (star.mean(rows, method) for star in stars)
        if value is not None and evaluations is not None:
            axes.plot([evaluations], [value], "*", color=FEDERATED[number % len(FEDERATED)], markersize=11)
    _lines(axes, curves)
    starred = f" (star: {ADAPTIVE})" if any(solver(row) == ADAPTIVE for row in rows) else ""
    axes.set(xlabel=f"Euler steps{starred}", ylabel=metric_name(metric))
    axes.set_xticks(steps, [str(number) for number in steps])
    axes.minorticks_off()
    return figure


def _against_minutes(rows: list[Row], metric: str) -> Figure:
    """A line for each method, at the minutes that it had really trained by then."""
    figure, axes = _empty()
    own = [row for row in rows if row["metric"] == PREFIX + metric]
    marks = sorted({float(row["minutes"]) for row in own})
    curves: dict[str, Points] = {}
    for method in order(own, "method"):
        known = [
            mark for mark in marks if Column("", PREFIX + metric, own[0]["nfe"], mark).mean(own, method) is not None
        ]
        both = [
            [Column("", PREFIX + metric, own[0]["nfe"], mark, key=key).mean(own, method) or 0.0 for mark in known]
            for key in ("seconds", "value")
        ]
        curves[method] = ([seconds / 60 for seconds in both[0]], both[1])
    _lines(axes, curves)
    drawn = f"{own[0]['images']} samples of {own[0]['nfe']} Euler steps"
    axes.set(xlabel=f"minutes of training ({drawn})", ylabel=metric_name(metric))
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    return figure


def _empty() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    return figure, figure.subplots()


def _lines(axes: Axes, curves: Mapping[str, Points]) -> None:
    """A line for each method, on two logarithmic scales, with round numbers up the side."""
    for number, (method, points) in enumerate(curves.items()):
        look: dict[str, Any] = {"color": FEDERATED[number % len(FEDERATED)], "marker": MARKERS[number % len(MARKERS)]}
        axes.plot(*points, label=plain(method), markersize=5, **look)
    axes.set(xscale="log", yscale="log")
    low, high = axes.get_ylim()
    marks = [mark for power in range(-3, 5) for mark in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
    shown = [mark for mark in marks if low <= mark <= high]
    if len(shown) > 1:
        axes.set_yticks(shown, [f"{mark:g}" for mark in shown])
    axes.legend()
