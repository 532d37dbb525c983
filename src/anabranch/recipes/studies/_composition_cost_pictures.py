"""The picture of the study `composition_cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.report._style import FEDERATED, INK, SOFT, style
from anabranch.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "fedflow": "FedFlow, T = 10",
    "ddm": "DDM, DFD, if it samples",
    "dcfm-a-1": "DCFM-A, R = 1",
    "dcfm-a-2": "DCFM-A, R = 2",
    "dcfm-a-3": "DCFM-A, R = 3",
    "dcfm-b": "DCFM-B",
}
STEPS = {
    "ddm": "FedFlow, DDM, DFD",
    "ddm+l": "with local penalty",
    "dcfm-a-1": "DCFM-A",
    "dcfm-b": "DCFM-B",
    "additive": "additive student",
}
PROBLEMS = {"k2": "k = 2", "k3": "k = 3, all attributes", "k3-pairs": "k = 3, pairs"}
Values = dict[tuple[str, str, str], float]


def draw(rows: list[Row], out: Path) -> dict[str, Path]:
    """One picture with a panel for each table."""
    values = {(row["problem"], row["method"], row["metric"]): row["value"] for row in rows}
    if not values:
        return {}
    with style():
        figure = _figure(values)
        path = out / "costs.png"
        figure.savefig(path, dpi=150, facecolor="white")
    return {"What a method sends, and what a step computes (Tables 3 and 4)": path}


def _figure(values: Values) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _sent(left, values)
    _computed(right, values)
    return figure


def _sent(axes: Axes, values: Values) -> None:
    """θ units against the number of silos; DDM as a silo that samples, as in the paper's table."""
    for color, (method, name) in zip(FEDERATED, NAMES.items(), strict=False):
        metric = "theta_units_sampling" if method == "ddm" else "theta_units"
        points = sorted(
            (int(problem.removeprefix("silos-")), value)
            for (problem, of, measured), value in values.items()
            if of == method and measured == metric and problem.startswith("silos-")
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=color, label=name)
    axes.set(xlabel="silos N", ylabel="sent and received by a silo, in θ", title="Communication")
    axes.set_xticks(sorted({int(p.removeprefix("silos-")) for p, _, _ in values if p.startswith("silos-")}))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _computed(axes: Axes, values: Values) -> None:
    """Bars: forward and, before them, backward."""
    problems = [name for name in PROBLEMS if any(place == name for place, _, _ in values)]
    high = 0.8 / max(1, len(problems))
    for number, problem in enumerate(problems):
        places = [place + number * high for place in range(len(STEPS))]
        found = [(values.get((problem, m, "forward"), 0.0), values.get((problem, m, "backward"), 0.0)) for m in STEPS]
        axes.barh(places, [f for f, _ in found], high * 0.9, color=FEDERATED[number], alpha=0.45)
        axes.barh(places, [b for _, b in found], high * 0.45, color=FEDERATED[number], label=PROBLEMS[problem])
        for place, (forward, backward) in zip(places, found, strict=True):
            if forward:
                text = f"{forward:.1f} / {backward:.1f}"
                axes.annotate(
                    text, (forward, place), (3, 0), textcoords="offset points", va="center", fontsize=7, color=SOFT
                )
    axes.set_yticks([place + 0.4 - high / 2 for place in range(len(STEPS))], list(STEPS.values()), color=INK)
    axes.invert_yaxis()
    axes.set(xlabel="passes of a batch in a step: forward (light) / backward (dark)", title="Computation")
    axes.legend(fontsize=8)
