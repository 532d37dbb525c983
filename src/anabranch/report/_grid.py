"""Pictures of samples by their attributes: the whole product of outcomes, or one sheet of images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import UsageError
from anabranch.report._style import FAINT, FEDERATED, HAIR, INK, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
DOTS = 130  # an inch
SEEN, NOVEL = FEDERATED[0], FEDERATED[1]
INNER = 0.86  # side of what is drawn in a cell of side one: the rest sets cells apart
ROOMY = 1.0  # side of a cell, in inches, that has room for a scale of its own
NAMED = 40  # outcomes beyond which axes have no names


@dataclass(frozen=True)
class Cells:
    """Samples `x` (n, d) with the `label` (n,) of their combination; which combinations (|Y|,) are `observed`, and
    which are `determined` by those; for images their `shape` (channels, height, width), else empty."""

    x: Array
    label: Array
    space: AttributeSpace
    observed: Array
    determined: Array
    shape: tuple[int, ...] = ()

    @staticmethod
    def of_run(arrays: Mapping[str, Array]) -> Cells | None:
        """What a run kept for this picture, if it did."""
        if "cells" not in arrays:
            return None
        space, shape = AttributeSpace.from_json(str(arrays["cell_space"])), tuple(arrays["cell_shape"].tolist())
        masks = arrays["cell_observed"], arrays["cell_determined"]
        return Cells(arrays["cells"], arrays["cell_labels"], space, *masks, shape)


def draw_grid(cells: Cells, title: str) -> bytes:
    """Outcomes of the first attribute in rows, of the second in columns, a panel for each of the third, as PNG.

    Cells that no silo has seen are framed. Points are drawn in their first two coordinates, all on one scale.
    """
    with style():
        return _png(grid_figure(cells, title))


def grid_figure(cells: Cells, title: str) -> Figure:
    """The same as a figure."""
    from matplotlib.figure import Figure

    if cells.space.k not in (2, 3):
        raise UsageError(
            f"A grid has two or three attributes, and there are {cells.space.k}: {', '.join(cells.space.names)}; sample"
            " chosen attributes instead."
        )
    rows, columns, panels = (*cells.space.sizes, 1)[:3]
    across = min(panels, 3)
    side = max(0.42, min(1.5, 9.0 / (across * columns)))
    size = (1.3 + across * (columns * side + 0.7), 1.5 + -(-panels // across) * (rows * side + 0.8))
    figure = Figure(figsize=(max(5.0, size[0]), size[1]), layout="constrained")
    grid = figure.subplots(-(-panels // across), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, axes in zip(range(panels), grid.flat, strict=False):
        axes.set_axis_on()
        _panel(axes, cells, number, side)
        if cells.space.k == 3:
            name, outcomes = cells.space.attributes[2]
            axes.set_title(plain(f"{name} = {outcomes[number]}"))
    _legend(figure, cells)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def draw_sheet(x: Array, shape: tuple[int, ...], title: str) -> bytes:
    """All images (n, channels · height · width) on one sheet, as PNG."""
    with style():
        from matplotlib.figure import Figure

        sheet = mosaic(_pixels(x.reshape(-1, *shape)))
        scale = min(0.9, 9.0 * shape[2] / sheet.shape[1]) / shape[2]
        figure = Figure(figsize=(max(3.2, sheet.shape[1] * scale), sheet.shape[0] * scale + 0.5), layout="constrained")
        axes = figure.subplots()
        axes.imshow(sheet, interpolation="nearest")
        axes.set_axis_off()
        figure.suptitle(plain(title), x=0.02, ha="left", fontsize=10, fontweight="bold")
        return _png(figure)


def draw_cloud(x: Array, title: str) -> bytes:
    """Points (n, d) in their first two coordinates, as PNG."""
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 5), layout="constrained")
        axes, points = figure.subplots(), _plane(x)
        axes.scatter(points[:, 0], points[:, 1], s=10, color=SEEN, alpha=0.6, linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(plain(title) + (" (first two coordinates)" if x.shape[1] > 2 else ""))
        return _png(figure)


def _panel(axes: Axes, cells: Cells, number: int, side: float) -> None:
    """One outcome of the third attribute: cell (row, column) is the unit square about (column, row), rows downwards."""
    (first, rows), (second, columns) = cells.space.attributes[:2]
    corners = None if cells.shape else _corners(cells.x)
    for row in range(len(rows)):
        for column in range(len(columns)):
            codes = (row, column, number)[: cells.space.k]
            label = int(np.ravel_multi_index(codes, cells.space.sizes))
            own = cells.x[cells.label == label]
            _frame(axes, cells, label, row, column, len(own) > 0)
            if len(own) and corners is None:
                _images(axes, own.reshape(-1, *cells.shape), row, column)
            elif len(own) and corners is not None:
                _points(axes, own, corners, row, column, bool(cells.observed[label]), side)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_yticks(range(len(rows)) if len(rows) <= NAMED else [], [plain(name) for name in rows][:NAMED])
    turned = max(map(len, columns)) * 0.085 > side
    names = [plain(name) for name in columns][:NAMED]
    axes.set_xticks(range(len(columns)) if len(columns) <= NAMED else [], names, rotation=90 if turned else 0)
    axes.set_ylabel(plain(first))
    axes.set_xlabel(plain(second))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    if corners is not None:
        _scales(axes, corners, (len(rows), len(columns)), side, flat=cells.x.shape[1] < 2)


def _scales(axes: Axes, corners: Array, cells: tuple[int, int], side: float, flat: bool) -> None:
    """The scale that all cells share, below the last row and to the left of the first column; where cells are small,
    below and beside the one in the corner alone. Points of one coordinate (`flat`) have none to the left."""
    from matplotlib.ticker import MaxNLocator

    for place, axis in enumerate((axes.xaxis, axes.yaxis)):
        low, high = corners[:, place]
        ticks = [tick for tick in MaxNLocator(nbins=4).tick_values(low, high) if low <= tick <= high]
        share = (np.array(ticks) - low) / (high - low) - 0.5
        count = cells[1 - place]
        shown = range(count) if side >= ROOMY else range(1) if place == 0 else range(count - 1, count)
        if flat and place == 1:
            continue
        places = [number + INNER * each for number in shown for each in (share if place == 0 else -share)]
        axis.set_ticks(places, [f"{tick:g}".replace("-", "−") for tick in ticks] * len(shown), minor=True)
        axis.set_tick_params(which="minor", length=2.5, labelsize=7.5, pad=2)
        axis.set_tick_params(which="major", pad=16 if place == 0 else 24)


def _frame(axes: Axes, cells: Cells, label: int, row: int, column: int, drawn: bool) -> None:
    from matplotlib.patches import Rectangle

    corner, width = (column - INNER / 2 - 0.03, row - INNER / 2 - 0.03), INNER + 0.06
    if not drawn:
        axes.add_patch(Rectangle(corner, width, width, facecolor="white", edgecolor=FAINT, hatch="////", linewidth=0))
    elif cells.observed[label]:
        axes.add_patch(Rectangle(corner, width, width, fill=False, edgecolor=HAIR, linewidth=0.8))
    else:
        dash = "-" if cells.determined[label] else (0, (3, 2))
        patch = Rectangle(corner, width, width, fill=False, edgecolor=NOVEL, linewidth=1.8, linestyle=dash, zorder=3)
        axes.add_patch(patch)


def _images(axes: Axes, images: Array, row: int, column: int) -> None:
    sheet = mosaic(_pixels(images))
    down, right = (INNER / 2 * side / max(sheet.shape[:2]) for side in sheet.shape[:2])
    extent = (column - right, column + right, row + down, row - down)
    axes.imshow(sheet, extent=extent, interpolation="nearest", zorder=2)


def _points(axes: Axes, points: Array, corners: Array, row: int, column: int, seen: bool, side: float) -> None:
    share = (_plane(points) - corners[0]) / (corners[1] - corners[0])
    inside = share[((share >= 0) & (share <= 1)).all(1)]
    x, y = column + INNER * (inside[:, 0] - 0.5), row + INNER * (0.5 - inside[:, 1])
    axes.scatter(x, y, s=max(1.0, 4 * side), color=SEEN if seen else NOVEL, alpha=0.5, linewidths=0, zorder=2)


def _legend(figure: Figure, cells: Cells) -> None:
    """What frames mean, as far as there are such cells."""
    from matplotlib.patches import Patch

    drawn = np.zeros(len(cells.space), dtype=bool)
    drawn[cells.label] = True
    novel = drawn & ~cells.observed
    kinds = [
        (novel & cells.determined, "no silo has seen it", {"edgecolor": NOVEL, "linewidth": 1.8}),
        (
            novel & ~cells.determined,
            "no silo has seen it, nor does it follow from what was seen",
            {"edgecolor": NOVEL, "linewidth": 1.8, "linestyle": (0, (3, 2))},
        ),
        (~drawn, "no expert has met an outcome", {"edgecolor": FAINT, "hatch": "////", "linewidth": 0}),
    ]
    handles = [Patch(facecolor="none", label=text, **look) for mask, text, look in kinds if mask.any()]  # type: ignore[arg-type]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=9, labelcolor=INK)


def _corners(x: Array) -> Array:
    """The corners (2, 2) of a square that holds all points but the farthest hundredth."""
    plane = _plane(x)
    low, high = np.quantile(plane, [0.005, 0.995], axis=0)
    half = 0.55 * max(float((high - low).max()), 1e-6)
    centre = (low + high) / 2
    return np.stack([centre - half, centre + half])


def _plane(x: Array) -> Array:
    return x[:, :2] if x.shape[1] > 1 else np.concatenate([x, np.zeros_like(x)], axis=1)


def _pixels(images: Array) -> Array:
    """Images (n, c, h, w) as (n, h, w, 3) in [0, 1]; where values go well below zero they count from −1."""
    low = -1.0 if images.min() < -0.5 else 0.0
    scaled = np.clip((images - low) / (1.0 - low), 0, 1).transpose(0, 2, 3, 1)
    return np.repeat(scaled, 3, axis=3) if scaled.shape[3] == 1 else scaled[..., :3]


def mosaic(images: Array) -> Array:
    """Images (n, h, w, 3) side by side, about as many in a row as rows, one white pixel apart."""
    count, height, width, _ = images.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    sheet = np.ones((rows * (height + 1) - 1, columns * (width + 1) - 1, 3))
    for number, image in enumerate(images):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = image
    return sheet


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DOTS, facecolor="white")
    return stream.getvalue()
