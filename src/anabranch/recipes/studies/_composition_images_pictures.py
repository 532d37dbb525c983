"""Pictures and tables of the study `composition_images`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.data.attributes import AttributeSpace
from anabranch.recipes._recipe import recipe
from anabranch.recipes._study import Lines, beside
from anabranch.report._style import FEDERATED, INK, POOLED, SOFT, marker, style
from anabranch.runs import Row, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
NAMES = {
    "real": "real images",
    "fedflow": "FedFlow",
    "fedflow+l": "FedFlow+L",
    "ddm": "DDM",
    "ddm+l": "DDM+L",
    "dfd": "DFD",
    "dfd+l": "DFD+L",
    "dcfm-a": "DCFM-A",
    "dcfm-b": "DCFM-B",
    "additive": "additive student",
    "hybrid": "A distilled",
}
NOVEL, KNOWN = (213, 94, 0), (230, 233, 237)  # frames
PANELS = {2: 4, 3: 2}  # beside each other, by the number of attributes
TABLES = {
    "Distance to real images, known (°) and novel (*)": ("fid_known", "fid_novel", "fid_unconditional"),
    "Novel combinations in other ways: terms apart, by weights of 1, as a whole, and guided": tuple(
        f"{what}_novel_{way}"
        for way in ("apart", "plain", "joint", "guided")
        for what in ("conformity", "fid", "fid_features")
    ),
    "The judge's view": (
        "conformity_known",
        "conformity_novel",
        "fid_features_known",
        "fid_features_novel",
        "fid_features_unconditional",
        "judge_accuracy",
    ),
    "Precision and recall, Inception": ("precision_known", "recall_known", "precision_novel", "recall_novel"),
    "Precision and recall, the judge's features": tuple(
        f"{what}_features_{side}" for side in ("known", "novel") for what in ("precision", "recall")
    ),
    "Cost of a silo; passes are of a batch": (
        "megabytes_up",
        "megabytes_down",
        "theta_units",
        "passes_forward",
        "passes_backward",
        "seconds",
        "sampling_seconds",
    ),
    "Settings": (
        "parameters",
        "channels",
        "batch",
        "rate",
        "average",
        "penalty",
        "steps_experts",
        "steps_federated",
        "steps_peers",
        "steps_student",
        "evaluations",
    ),
    "Settings of experts, and how they are weighed": (
        "share_full",
        "share_marginal",
        "share_unconditional",
        "late",
        "compared",
        "local_steps",
        "experts_at_once",
        "temperature",
    ),
    "Settings beside peers": (
        "rounds_peers",
        "rate_peers",
        "penalty_peers",
        "early_peers",
        "late_peers",
        "held_peers",
        "least_peers",
    ),
    "Settings of a student": (
        "rate_student",
        "batch_student",
        "penalty_student",
        "additive_since",
        "teachers_together",
    ),
}


SAMPLING = ("weight_known_", "until_known", "composed_known", "weight_novel_", "until_novel", "composed_novel")


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """A table for each group of figures that is there; the paper's beside ours where it has them."""
    problems = {row["problem"] for row in rows}
    published = [row for row in recipe("dcfm-cmnist").published if row["problem"] in problems]
    found = []
    for title, metrics in TABLES.items():
        part = sorted((row for row in rows if row["metric"] in metrics), key=lambda row: metrics.index(row["metric"]))
        part.sort(key=lambda row: (row["problem"], _place(row["method"])))
        if part:
            found.append((title, beside(part, published)))
    ways = [row for row in rows if row["metric"].startswith(SAMPLING)]
    if ways:
        ways.sort(key=lambda row: (row["problem"], _place(row["method"])))
        found.append(
            (
                "How samples are drawn: weights, when these end, and whether attributes are added up",
                beside(ways, []),
            )
        )
    return found


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Of each problem the grids of all methods; and precision against recall of novel combinations."""
    found: dict[str, tuple[str, Figure]] = {}
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    with style():
        for problem in problems:
            title = f"One sample of every combination, {problem}: novel ones in orange frames"
            if grids := _grids(problem, folders):
                found[title] = (f"grid-{problem}", _grid_figure(grids))
        for word, of in (("", "Inception"), ("_features", "the judge's features")):
            if any(row["metric"] == f"precision{word}_novel" for row in rows):
                title = f"Precision and recall of novel combinations, {of}"
                found[title] = (f"precision-recall{word.replace('_', '-')}", _scatter(rows, problems, word))
        written = {}
        for title, (name, figure) in found.items():
            written[title] = out / f"{name}.png"
            figure.savefig(written[title], dpi=150, facecolor="white")
    return written


def _place(method: str) -> int:
    return list(NAMES).index(method) if method in NAMES else len(NAMES)


def _grids(problem: str, folders: list[Path]) -> dict[str, dict[str, Array]]:
    """The arrays of each method's first seed, in the order of the tables."""
    chosen: dict[str, Path] = {}
    for folder in folders:
        if folder.parents[1].name == problem and (folder / "grid.npz").exists():
            chosen.setdefault(folder.parents[0].name, folder)
    return {m: RunFolder(chosen[m]).load_arrays("grid.npz") for m in sorted(chosen, key=_place)}


def mosaic(images: Array, novel: Array, sizes: tuple[int, ...]) -> Array:
    """Images (|Y|, c, h, w) of all combinations as one picture (H, W, 3): rows are outcomes of the first attribute,
    columns those of all others together; every image has a frame that says whether it is novel."""
    rows = sizes[0]
    columns = len(images) // rows
    _, channels, height, width = images.shape
    frame = max(1, height // 14)
    tall, wide = height + 2 * frame, width + 2 * frame
    found = np.zeros((rows * tall, columns * wide, 3), dtype=np.uint8)
    for place, (image, new) in enumerate(zip(images, novel, strict=True)):
        top, left = place // columns * tall, place % columns * wide
        found[top : top + tall, left : left + wide] = NOVEL if new else KNOWN
        inside = np.broadcast_to(image, (3, height, width)) if channels == 1 else image
        found[top + frame : top + frame + height, left + frame : left + frame + width] = inside.transpose(1, 2, 0)
    return found


def _grid_figure(grids: dict[str, dict[str, Array]]) -> Figure:
    from matplotlib.figure import Figure

    first = next(iter(grids.values()))
    space = AttributeSpace.from_json(str(first["space"]))
    columns = min(PANELS.get(space.k, 1), len(grids))
    rows = -(-len(grids) // columns)
    pixels = mosaic(first["images"], first["novel"], space.sizes).shape
    width = 13.6 / PANELS.get(space.k, 1)
    height = 0.35 + width * pixels[0] / pixels[1]
    figure = Figure(figsize=(columns * (width + 0.6), rows * (height + 0.45) + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (method, arrays) in zip(panels.flat, grids.items(), strict=False):
        axes.set_axis_on()
        axes.grid(False)
        axes.imshow(mosaic(arrays["images"], arrays["novel"], space.sizes), interpolation="nearest")
        axes.set(title=NAMES.get(method, method))
        _outcomes(axes, space, pixels)
    return figure


def _outcomes(axes: Axes, space: AttributeSpace, pixels: tuple[int, ...]) -> None:
    """Names beside rows and, for two attributes, below columns."""
    (first, names), *others = space.attributes
    axes.set_yticks((np.arange(len(names)) + 0.5) * pixels[0] / len(names), names, fontsize=7)
    axes.set_ylabel(first)
    axes.set_xlabel(" × ".join(name for name, _ in others))
    across = others[0][1]
    axes.set_xticks((np.arange(len(across)) + 0.5) * pixels[1] / len(across), across, fontsize=7, rotation=60)
    axes.tick_params(length=0)


def _scatter(rows: list[Row], problems: list[str], word: str) -> Figure:
    """A panel for each problem, a point for each method."""
    from matplotlib.figure import Figure

    methods = sorted({row["method"] for row in rows}, key=_place)
    columns = 2 * len(problems)
    figure = Figure(figsize=(4.2 * len(problems) + 0.4, 4.0 + 0.25 * -(-len(methods) // columns)), layout="constrained")
    panels = figure.subplots(1, len(problems), squeeze=False)[0]
    for axes, problem in zip(panels, problems, strict=True):
        for number, method in enumerate(methods):
            point = [_mean(rows, problem, method, f"{what}{word}_novel") for what in ("recall", "precision")]
            if None not in point:
                color = POOLED[1] if method == "real" else FEDERATED[number % len(FEDERATED)]
                look: dict[str, Any] = {"color": color, "marker": marker(number), "edgecolor": INK}
                axes.scatter(*point, s=60, linewidth=0.6, label=NAMES.get(method, method), **look)
        axes.set(title=problem, xlabel="recall, novel", ylabel="precision, novel")
    handles = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, labelcolor=SOFT)
    return figure


def _mean(rows: list[Row], problem: str, method: str, metric: str) -> float | None:
    values = [r["value"] for r in rows if (r["problem"], r["method"], r["metric"]) == (problem, method, metric)]
    return fmean(values) if values else None
