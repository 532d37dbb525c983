"""Pictures of the study `flow_images`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.recipes._names import metric_name
from anabranch.recipes.studies.flow_images._axes import Line, one_panel
from anabranch.recipes.studies.flow_images._curve_pictures import curve_figures
from anabranch.recipes.studies.flow_images._rows import Column, euler_steps, order, solver
from anabranch.recipes.studies.flow_images._sampling import ADAPTIVE
from anabranch.report._sheets import sheets_figure, sheets_of
from anabranch.report._style import style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = 25  # images of each number of steps
DRAWN = ("fid_test", "pixels_test")


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Of each problem: distance against steps, while it trains also against minutes or rounds, and sheets of samples of
    every method's first seed."""
    written: dict[str, Path] = {}
    with style():
        for problem in order(rows, "problem"):
            own = [row for row in rows if row["problem"] == problem]
            for title, path, figure in [*_figures(problem, own, out), *_sheets(problem, folders, out)]:
                figure.savefig(path, dpi=150, facecolor="white")
                written[title] = path
    return written


def _figures(problem: str, rows: list[Row], out: Path) -> Iterator[tuple[str, Path, Figure]]:
    for metric in DRAWN:
        if any(row["metric"] == metric for row in rows):
            title = f"{problem}: {metric_name(metric)} against the number of steps"
            yield title, out / f"steps-{problem}.png", _against_steps(rows, metric)
        yield from curve_figures(problem, rows, metric, out)


def _sheets(problem: str, folders: list[Path], out: Path) -> Iterator[tuple[str, Path, Figure]]:
    sheets = {}
    for folder in folders:
        method = folder.parents[0].name
        if folder.parents[1].name == problem and (folder / "samples.npz").exists() and method not in sheets:
            sheets[method] = sheets_of(RunFolder(folder).load_arrays("samples.npz"))
    if sheets:
        yield f"{problem}: samples, from the same noise", out / f"samples-{problem}.png", sheets_figure(sheets)


def _against_steps(rows: list[Row], metric: str) -> Figure:
    """A line for each method; a star is dopri5, at the evaluations that it took."""
    steps, methods = euler_steps(rows, metric), order(rows, "method")
    adaptive = Column("", metric, solver=ADAPTIVE), Column("", metric, solver=ADAPTIVE, key="nfe")
    lines: dict[str, Line] = {}
    stars: dict[str, Line] = {}
    for method in methods:
        found = {nfe: Column("", metric, nfe).mean(rows, method) for nfe in steps}
        known = {float(nfe): value for nfe, value in found.items() if value is not None}
        lines[method] = Line(list(known), list(known.values()))
        value, evaluations = (column.mean(rows, method) for column in adaptive)
        if value is not None and evaluations is not None:
            stars[method] = Line([evaluations], [value])
    figure, axes = one_panel(lines, methods, stars)
    starred = f" (star: {ADAPTIVE})" if any(solver(row) == ADAPTIVE for row in rows) else ""
    axes.set(xlabel=f"Euler steps{starred}", ylabel=metric_name(metric))
    axes.set_xticks(steps, [str(number) for number in steps])
    axes.minorticks_off()
    return figure
