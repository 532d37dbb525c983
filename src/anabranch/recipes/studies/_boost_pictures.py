"""Pictures and tables of the study `boost`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

from anabranch.recipes._recipe import recipe
from anabranch.recipes._study import Lines
from anabranch.report._style import FEDERATED, INK, POOLED, style
from anabranch.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNERS = {"fedavg": "FedAvg", "fedrep": "FedRep", "fedper": "FedPer"}
GRAPHS: dict[str | int, str] = {"affinity": "affinity", 3: "3 neighbours", 5: "5 neighbours"}
SUPPORTS = (10, 100)
LONGEST = 21  # clients whose classes can be written at the side of a matrix


def variant(graph: str | int, support: int) -> str:
    """A way to group clients, by name.

    >>> variant("affinity", 10), variant(3, 100)
    ('affinity S=10', '3 neighbours S=100')
    """
    return f"{GRAPHS.get(graph, f'{graph} neighbours')} S={support}"


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """The distance matrices of one seed, and the accuracies of every problem beside the paper's."""
    written = {}
    with style():
        if matrices := _matrices(folders):
            title = "Distances between clients, those with the same classes side by side (Figure 15)"
            written[title] = _save(_matrix_figure(matrices), out / "distances.png")
        if problems := _problems(rows, "accuracy"):
            title = "Accuracy on held-out images, alone and in groups (Tables 1-5); diamonds are the paper's"
            written[title] = _save(_accuracy_figure(problems, rows), out / "accuracy.png")
    return written


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """A table for each data set and structure, as the paper has them, in percent; then how well groups are found."""
    values, theirs = (
        _values(rows, "accuracy"),
        {(p["problem"], p["method"]): p for p in recipe("fedwad-boost").published},
    )
    found = []
    for family in dict.fromkeys(problem.rpartition("-")[0] for problem in _problems(rows, "accuracy")):
        names = [variant(graph, support) for graph in GRAPHS for support in SUPPORTS]
        names = [name for name in names if any(key[1].endswith(name) and key[0].startswith(family) for key in values)]
        lines = [["learner", "clients", "", "vanilla", *names]]
        for learner, label in LEARNERS.items():
            for problem in (p for p in _problems(rows, "accuracy") if p.rpartition("-")[0] == family):
                methods = [learner, *(f"{learner} {name}" for name in names)]
                head = [label, problem.rpartition("-")[2]]
                lines.append([*head, "ours", *(_percent(values.get((problem, m), [])) for m in methods)])
                lines.append([*head, "paper", *(_published(theirs.get((problem, m))) for m in methods)])
        found.append((f"Accuracy in percent, {family}", lines))
    if groups := _values(rows, "rand_index"):
        lines = [["problem", "by", "adjusted Rand index, mean", "least", "seeds"]]
        for (problem, method), index in groups.items():
            lines.append([problem, method, f"{fmean(index):.3f}", f"{min(index):.3f}", str(len(index))])
        found.append(("Planted groups that are found again", lines))
    return found


def _values(rows: Iterable[Row], metric: str) -> dict[tuple[str, str], list[float]]:
    """What all seeds found, by problem and method."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["metric"] == metric:
            found[row["problem"], row["method"]].append(row["value"])
    return dict(found)


def _problems(rows: Iterable[Row], metric: str) -> list[str]:
    return list(dict.fromkeys(row["problem"] for row in rows if row["metric"] == metric))


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.1f}{spread}"


def _published(entry: Row | None) -> str:
    return "–" if entry is None else f"{100 * entry['value']:.1f} ± {100 * entry['spread']:.1f}"


def _matrices(folders: Sequence[Path]) -> dict[str, tuple[np.ndarray, list[str]]]:
    """One matrix for each problem and support: that of the first seed."""
    found: dict[str, tuple[np.ndarray, list[str]]] = {}
    for folder in sorted(folders):
        for file in sorted(folder.glob("distances-*.npz")):
            with np.load(file, allow_pickle=False) as saved:
                title = f"{saved['problem']}, S = {saved['support']}"
                found.setdefault(title, (saved["matrix"], saved["classes"].tolist()))
    return found


def _matrix_figure(matrices: dict[str, tuple[np.ndarray, list[str]]]) -> Figure:
    from matplotlib.figure import Figure

    columns = min(2, len(matrices))
    lines = -(-len(matrices) // columns)
    figure = Figure(figsize=(5.4 * columns, 4.7 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(matrices) :]:
        axes.set_axis_off()
    for axes, (title, (matrix, classes)) in zip(grid.flat, matrices.items(), strict=False):
        shown = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)  # zeros would use up the colours
        image = axes.imshow(shown, cmap="viridis")
        axes.set_title(title)
        axes.grid(False)
        axes.set_xlabel("client")
        axes.set_ylabel("the client's classes" if len(classes) < LONGEST else "client")
        if len(classes) < LONGEST:
            axes.set_yticks(range(len(classes)), [text.replace(" ", ", ") for text in classes])
        step = 5 if len(classes) < LONGEST else 20
        axes.set_xticks(range(step - 1, len(classes), step), list(range(step, len(classes) + 1, step)))
        figure.colorbar(image, ax=axes, shrink=0.85, label="federated OTDD")
    return figure


def _accuracy_figure(problems: list[str], rows: list[Row]) -> Figure:
    from matplotlib.figure import Figure

    columns = min(2, len(problems))
    lines = -(-len(problems) // columns)
    figure = Figure(figsize=(6.2 * columns, 3.6 * lines + 0.4), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(problems) :]:
        axes.set_axis_off()
    for axes, problem in zip(grid.flat, problems, strict=False):
        _bars(axes, problem, _values(rows, "accuracy"))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4 * columns - 1 if columns > 1 else 3)
    return figure


def _bars(axes: Axes, problem: str, values: dict[tuple[str, str], list[float]]) -> None:
    """A group of bars a learner, with the deviation over seeds; the paper's figures as diamonds on them."""
    theirs = {(entry["problem"], entry["method"]): entry for entry in recipe("fedwad-boost").published}
    names = [variant(graph, support) for support in SUPPORTS for graph in GRAPHS]
    ways = ["", *(f" {name}" for name in names if any(key[1].endswith(name) for key in values))]
    width = 0.86 / len(ways)
    for number, way in enumerate(ways):
        color = POOLED[0] if not way else FEDERATED[(number - 1) % len(FEDERATED)]
        found = [values.get((problem, learner + way), []) for learner in LEARNERS]
        at = [place + (number - (len(ways) - 1) / 2) * width for place in range(len(LEARNERS))]
        height = [100 * fmean(of) if of else 0.0 for of in found]
        spread = [100 * stdev(of) if len(of) > 1 else 0.0 for of in found]
        axes.bar(at, height, 0.92 * width, yerr=spread, color=color, label=way.strip() or "vanilla", capsize=2)
        paper = [theirs.get((problem, learner + way)) for learner in LEARNERS]
        marked = [(x, 100 * entry["value"]) for x, entry in zip(at, paper, strict=True) if entry]
        if marked:
            axes.plot(*zip(*marked, strict=True), "D", color=INK, markerfacecolor="white", markersize=4)
    axes.set_title(problem)
    axes.set_xticks(range(len(LEARNERS)), list(LEARNERS.values()))
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(0, 105)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=150, facecolor="white")
    return path
