"""Pictures and tables of the study `flow_images`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from anabranch.recipes._names import metric_name
from anabranch.recipes._recipe import recipes
from anabranch.recipes._study import Lines
from anabranch.report._sheets import sheets_figure, sheets_of
from anabranch.report._style import FEDERATED, MARKERS, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = "flow_images"
KEPT = 25  # images of each number of steps
BY_STEPS = ("fid_train", "fid_test", "kid_train", "kid_test", "pixels_train", "pixels_test", "seconds_50k")
SCORE = "inception_score"  # the paper does not say how it was computed, so ours is not set beside it
Column = tuple[str, int | None, str]  # metric, number of steps, heading


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Of each problem and measure: methods down, numbers of steps across, the paper's figures beside ours; then what
    training cost, and at last the paper's Inception Scores, which have no figure of ours beside them."""
    found = []
    for problem in _order(rows, "problem"):
        own = [row for row in rows if row["problem"] == problem]
        theirs = [row for row in published() if row["problem"] == problem]
        for metric in (name for name in BY_STEPS if any(row["metric"] == name for row in own)):
            steps = sorted({row["nfe"] for row in own if row["metric"] == metric})
            columns = [(metric, nfe, _steps(nfe)) for nfe in steps]
            found.append(_table(f"{problem}: {metric_name(metric)}", own, theirs, columns))
        found.append(_table(f"{problem}: training", own, theirs, _cost(own, theirs)))
        found += _scores(problem, theirs)
    return found


def published() -> list[Row]:
    """The paper's figures of all recipes of this study. Rows do not say which recipe they are of, so no two recipes
    have figures for problems of the same name."""
    return [row for recipe in recipes().values() if recipe.study == STUDY for row in recipe.published]


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


def _table(title: str, rows: list[Row], theirs: list[Row], columns: list[Column]) -> tuple[str, Lines]:
    """Methods down; a column of ours, and one of the paper's where it has figures. The title says where those stand."""
    beside = {column: [row for row in theirs if (row["metric"], row.get("nfe")) == column[:2]] for column in columns}
    places = _order([row for found in beside.values() for row in found], "where")
    lines = [["method"]]
    for column in columns:
        lines[0] += [column[2], f"{column[2]}, paper"] if beside[column] else [column[2]]
    for method in _order(rows, "method"):
        line = [method]
        for column in columns:
            value = _mean(rows, method, *column[:2])
            line.append("–" if value is None else f"{value:.4g}")
            if beside[column]:
                line.append(_figures(beside[column], method))
        lines.append(line)
    return f"{title} (paper: {'; '.join(places)})" if places else title, lines


def _cost(rows: list[Row], theirs: list[Row]) -> list[Column]:
    """What is measured once a run. A time that the paper prints has its column even where we have none."""
    once = [row for row in [*rows, *theirs] if row.get("nfe") is None]
    metrics = [name for name in _order(once, "metric") if name not in BY_STEPS and "_error" not in name]
    return [(metric, None, metric_name(metric)) for metric in metrics]


def _scores(problem: str, theirs: list[Row]) -> list[tuple[str, Lines]]:
    """The paper's Inception Scores, alone."""
    own = [row for row in theirs if row["metric"] == SCORE]
    if not own:
        return []
    steps = sorted({row["nfe"] for row in own})
    lines = [["method", *(f"{_steps(nfe)}, paper" for nfe in steps)]]
    for method in _order(own, "method"):
        lines.append([method, *(_figures([row for row in own if row["nfe"] == nfe], method) for nfe in steps)])
    return [(f"{problem}: {metric_name(SCORE)}, not comparable (paper: {'; '.join(_order(own, 'where'))})", lines)]


def _figures(theirs: list[Row], method: str) -> str:
    """What the paper prints for a method; where its versions differ, all of it."""
    values = dict.fromkeys(f"{row['value']:.4g}" for row in theirs if row["method"] == method)
    return " / ".join(values) or "–"


def _steps(nfe: int) -> str:
    return f"{nfe} step{'s' if nfe > 1 else ''}"


def _mean(rows: list[Row], method: str, metric: str, nfe: int | None) -> float | None:
    found = [r["value"] for r in rows if (r["method"], r["metric"], r["nfe"]) == (method, metric, nfe)]
    return fmean(found) if found else None


def _order(rows: list[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))
