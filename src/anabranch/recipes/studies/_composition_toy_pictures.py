"""Pictures and tables of the study `composition_toy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anabranch.data.attributes import CORNERS, corner_modes
from anabranch.recipes._study import Lines, beside
from anabranch.report._style import FAINT, FEDERATED, INK, SOFT, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARRAYS = "samples.npz"
NAMES = {
    "fedflow": "FedFlow",
    "fedflow+l": "FedFlow + L",
    "ddm": "DDM",
    "ddm+l": "DDM + L",
    "dfd": "DFD",
    "dfd+l": "DFD + L",
    "ddm-learned+l": "DDM + L, learned",
    "dcfm-a-simultaneous": "DCFM-A, at once",
    "dcfm-a": "DCFM-A, in turn",
    "dcfm-b": "DCFM-B",
    "additive": "additive student",
    "hybrid": "hybrid",
}
PARTITIONS = {"iid": "IID", "non-iid": "non-IID"}
QUALITY = ("hit_novel", "w2_novel", "reach", "hit_known", "w2_known", "w2_floor")
ASIDE = ("w2_unconditional", "w2_unconditional_floor", "theta_units", "forward", "backward")
COLORS = FEDERATED[:4]  # by combination
WIDE = 2.4  # what a panel shows, in units of the modes' distance from 0
Arrays = dict[str, NDArray[np.float32]]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """The data of both partitions, and the samples of every method, for each geometry that was run. The first seed."""
    found = _arrays(folders)
    pictures: dict[str, tuple[str, Figure]] = {}
    with style():
        for ending, where in (("", "(±1, ±1)"), ("-far", "(±2, ±2)")):
            places = {name: text for name in PARTITIONS if any(p == (text := name + ending) for p, _ in found)}
            if not places:
                continue
            data = f"What the silos hold, modes at {where}" + (" (Figure 2)" if not ending else "")
            pictures[data] = (f"data{ending}", _data(found, places))
            samples = f"Samples of every combination, modes at {where}" + (" (Figure 3)" if not ending else "")
            pictures[samples] = (f"samples{ending}", _samples(found, places))
        written = {}
        for title, (name, figure) in pictures.items():
            written[title] = out / f"{name}.png"
            figure.savefig(written[title], dpi=130, facecolor="white")
    return written


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Quality of samples; then what is said besides: without attributes, and what it cost."""
    titles = {QUALITY: "Novel and known combinations", ASIDE: "Samples without attributes, and costs"}
    parts = {title: [row for row in rows if row["metric"] in metrics] for metrics, title in titles.items()}
    return [(title, beside(part, [])) for title, part in parts.items() if part]


def _arrays(folders: Sequence[Path]) -> dict[tuple[str, str], Arrays]:
    """By problem and method, of the first seed."""
    found: dict[tuple[str, str], Arrays] = {}
    for folder in folders:
        place = folder.parents[1].name, folder.parent.name
        if place not in found and (folder / ARRAYS).exists():
            found[place] = RunFolder(folder).load_arrays(ARRAYS)
    return found


def _data(found: dict[tuple[str, str], Arrays], places: dict[str, str]) -> Figure:
    """A panel for each silo of each partition."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.4 + 2.3 * 2 * len(places), 2.9), layout="constrained")
    panels = iter(figure.subplots(1, 2 * len(places), sharex=True, sharey=True, squeeze=False)[0])
    for partition, problem in places.items():
        arrays = next(own for (place, _), own in found.items() if place == problem)
        for silo in sorted(name.removeprefix("silo_") for name in arrays if name.startswith("silo_")):
            axes = next(panels)
            _frame(axes, arrays)
            for label in range(len(CORNERS)):
                own = arrays[f"silo_{silo}"][arrays[f"label_{silo}"] == label]
                axes.scatter(own[:, 0], own[:, 1], s=3, color=COLORS[label], alpha=0.6, linewidths=0)
            axes.set_title(f"{PARTITIONS[partition]}, silo {silo}")
    _legend(figure)
    return figure


def _samples(found: dict[tuple[str, str], Arrays], places: dict[str, str]) -> Figure:
    """Two methods a row, each on every partition."""
    from matplotlib.figure import Figure

    methods = [name for name in NAMES if any((problem, name) in found for problem in places.values())]
    wide = 2 * len(places)
    high = -(-len(methods) // 2)
    figure = Figure(figsize=(0.4 + 2.3 * wide, 0.6 + 2.35 * high), layout="constrained")
    panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for number, method in enumerate(methods):
        for place, (partition, problem) in enumerate(places.items()):
            if (problem, method) in found:
                axes = panels[number // 2, number % 2 * len(places) + place]
                _panel(axes, found[problem, method])
                axes.set_title(f"{NAMES[method]} · {PARTITIONS[partition]}", fontsize=9)
    _legend(figure)
    return figure


def _panel(axes: Axes, arrays: Arrays) -> None:
    axes.set_axis_on()
    distance = _frame(axes, arrays)
    for label in range(len(CORNERS)):
        x = np.clip(arrays[f"sample_{label}"], -WIDE * distance, WIDE * distance)  # strays stay at the border
        axes.scatter(x[:, 0], x[:, 1], s=2.5, color=COLORS[label], alpha=0.6, linewidths=0)


def _frame(axes: Axes, arrays: Arrays) -> float:
    """Equal axes with a cross at each mode, and around the missing one a circle of all that is a hit; its distance."""
    from matplotlib.patches import Circle

    distance, radius = float(arrays["distance"]), float(arrays["radius"])
    for mode in corner_modes(distance).tolist():
        axes.plot(*mode, marker="+", color=SOFT, markersize=5, zorder=3)
    axes.add_patch(Circle((distance, distance), radius, fill=False, edgecolor=INK, linestyle="--", linewidth=1))
    ends = (-WIDE * distance, WIDE * distance)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.set_xticks([-distance, distance])
    axes.set_yticks([-distance, distance])
    axes.tick_params(labelsize=7, color=FAINT)
    return distance


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    words = [
        CORNERS.describe(label).replace("horizontal=", "").replace("vertical=", "") for label in range(len(CORNERS))
    ]
    handles = [Line2D([], [], marker="o", linestyle="", color=color) for color in COLORS]
    handles.append(Line2D([], [], marker="o", linestyle="", markerfacecolor="none", color=INK))
    figure.legend(handles, [*words, "what nobody has seen"], loc="outside lower center", ncols=5)
