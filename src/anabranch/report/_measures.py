"""Pictures of measures and distances: the way of ξ, a matrix of distances, a coreset."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.report._style import FEDERATED, HAIR, INK, SOFT, EndLabel, label_ends, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
DOTS = 130  # an inch
SHOWN = 1500  # points of a cloud; more only thicken it
PANELS = 4  # rounds of which ξ is drawn
NAMES = 60  # silos beyond which a matrix is drawn without names


@dataclass(frozen=True)
class Way:
    """How ξ came to lie between two data sets.

    `clouds` are the data sets by name, each (n, d); `path` is ξ of every round, its start included, as points (S, d)
    and weights (S,); `values` the upper bound that each of them gives; `lines` other figures to stand beside these.
    """

    clouds: Mapping[str, Array]
    path: Sequence[tuple[Array, Array]]
    values: Sequence[float]
    lines: Mapping[str, float]


def draw_way(way: Way, title: str) -> bytes:
    """ξ in four rounds between both data sets, and the bound by round, as PNG."""
    with style():
        from matplotlib.figure import Figure

        rounds = _chosen(len(way.path))
        axes_of = _plane([*way.clouds.values()])
        clouds = {name: _project(cloud[:SHOWN], axes_of) for name, cloud in way.clouds.items()}
        corners = _corners([*clouds.values(), _project(way.path[0][0], axes_of)])
        wide, high = corners[1] - corners[0]
        figure = Figure(figsize=(2.7 * len(rounds) + 4.9, 1.3 + 2.7 * min(1.0, high / wide)), layout="constrained")
        grid = figure.subplots(1, len(rounds) + 1, width_ratios=[2.7] * len(rounds) + [3.6])
        for axes, number in zip(grid, rounds, strict=False):
            for cloud, color in zip(clouds.values(), FEDERATED, strict=False):
                axes.scatter(cloud[:, 0], cloud[:, 1], s=5, color=color, alpha=0.35, linewidths=0)
            points, weight = way.path[number]
            atoms, size = _project(points, axes_of), 14 * weight / weight.mean()
            axes.scatter(atoms[:, 0], atoms[:, 1], s=size, color=INK, linewidths=0, alpha=0.85)
            axes.set_title("start" if number == 0 else f"round {number}")
            _bare(axes, corners)
        for number, (name, color) in enumerate(zip(clouds, FEDERATED, strict=False)):
            grid[number].set_xlabel(plain(name), color=color, fontweight="bold")
        if len(rounds) > 2:
            grid[2].set_xlabel("ξ", color=INK, fontweight="bold")
        _values(grid[-1], way)
        figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        return _png(figure)


def draw_matrix(distances: Array, names: Sequence[str], labels: Sequence[int], title: str) -> bytes:
    """The distances with silos ordered by cluster, and a frame about each cluster, as PNG."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        order = np.argsort(np.asarray(labels), kind="stable")
        sizes = np.bincount(np.asarray(labels))
        side = min(9.0, 2.8 + 0.28 * len(names))
        figure = Figure(figsize=(side + 1.2, side), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(distances[np.ix_(order, order)], cmap="Blues_r", vmin=0)
        start = -0.5
        for number, size in enumerate(sizes):
            color = FEDERATED[number % len(FEDERATED)]
            frame = Rectangle((start, start), size, size, fill=False, edgecolor=color, linewidth=2.5, clip_on=False)
            axes.add_patch(frame)
            start += size
        ticks = range(len(names)) if len(names) <= NAMES else []
        axes.set_xticks(ticks, [plain(names[at]) for at in order][: len(ticks)], rotation=90)
        axes.set_yticks(ticks, [plain(names[at]) for at in order][: len(ticks)])
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_title(plain(title))
        bar = figure.colorbar(image, ax=axes, shrink=0.8)
        bar.outline.set_visible(False)
        bar.set_label("distance")
        return _png(figure)


def draw_coreset(
    points: Array, weight: Array, clouds: Mapping[str, Array], shape: tuple[int, ...], title: str
) -> bytes:
    """The atoms as images of that shape, or, where they have none, in the plane over the data sets, as PNG."""
    with style():
        from matplotlib.figure import Figure

        if shape:
            columns = min(10, len(points))
            rows = -(-len(points) // columns)
            figure = Figure(figsize=(1.0 * columns, 1.15 * rows + 0.5), layout="constrained")
            grid = figure.subplots(rows, columns, squeeze=False)
            for axes in grid.flat:
                axes.set_axis_off()
            for axes, point in zip(grid.flat, points, strict=False):
                pixels = point.reshape(shape).transpose(1, 2, 0).clip(0, 1)
                axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
            figure.suptitle(plain(title), x=0.01, ha="left", fontsize=10.5, fontweight="bold")
            return _png(figure)
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.subplots()
        axes_of = _plane([*clouds.values()])
        seen = {name: _project(cloud[:SHOWN], axes_of) for name, cloud in clouds.items()}
        for number, (name, cloud) in enumerate(seen.items()):
            color = FEDERATED[number % len(FEDERATED)]
            axes.scatter(cloud[:, 0], cloud[:, 1], s=7, color=color, alpha=0.35, linewidths=0, label=plain(name))
        atoms, size = _project(points, axes_of), 60 * weight / weight.mean()
        axes.scatter(atoms[:, 0], atoms[:, 1], s=size, color=INK, edgecolors="white", linewidths=0.8)
        _bare(axes, _corners([*seen.values()]))
        axes.set_title(plain(title))
        if len(seen) <= len(FEDERATED):
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=2.5)
        return _png(figure)


def _values(axes: Axes, way: Way) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.plot(range(len(way.values)), way.values, color=INK, marker="o", markersize=3.5)
    ends = [EndLabel("at most", len(way.values) - 1, way.values[-1], INK)]
    for name, level in way.lines.items():
        axes.axhline(level, color=SOFT, linestyle=(0, (4, 3)), linewidth=1.1)
        ends.append(EndLabel(name, len(way.values) - 1, level, SOFT))
    levels = [*way.values, *way.lines.values()]
    low, high = min(levels), max(levels)
    axes.set_ylim(low - 0.08 * (high - low) - 1e-12, high + 0.08 * (high - low) + 1e-12)
    axes.set_xlim(-0.3, len(way.values) - 0.7)
    axes.set_title("the bound, by round")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_ends(axes, ends, gap=0.09)


def _chosen(count: int) -> list[int]:
    """Rounds to draw: the start, the last, and some early ones, for most of the way is made there.

    >>> _chosen(21), _chosen(2)
    ([0, 1, 4, 20], [0, 1])
    """
    last = count - 1
    wanted = [0, *(round(last ** (place / (PANELS - 2))) for place in range(PANELS - 2)), last]
    return sorted({min(number, last) for number in wanted})


def _plane(clouds: Sequence[Array]) -> tuple[Array, Array] | None:
    """The mean and the first two principal axes (d, 2) of all clouds alike; None where points lie in the plane."""
    wide = clouds[0].shape[1]
    if wide <= 2:
        return None
    rows = np.concatenate([cloud[:SHOWN] for cloud in clouds]).astype(np.float64)
    centre = rows.mean(0)
    return centre, np.linalg.svd(rows - centre, full_matrices=False)[2][:2].T


def _project(points: Array, plane: tuple[Array, Array] | None) -> Array:
    """Points in the plane; those on a line lie on its first axis."""
    if plane is not None:
        return np.asarray((points - plane[0]) @ plane[1])
    return points if points.shape[1] == 2 else np.concatenate([points, np.zeros_like(points)], axis=1)


def _corners(clouds: Sequence[Array]) -> Array:
    """The corners (2, 2) that hold all clouds, with a margin, never flatter than two to one."""
    points = np.concatenate(clouds)
    low, high = points.min(0), points.max(0)
    margin = 0.05 * max(float((high - low).max()), 1e-6)
    slack = np.maximum(0.0, 0.5 * (high - low).max() - (high - low)) / 2 + margin
    return np.stack([low - slack, high + slack])


def _bare(axes: Axes, corners: Array) -> None:
    axes.set_xlim(float(corners[0, 0]), float(corners[1, 0]))
    axes.set_ylim(float(corners[0, 1]), float(corners[1, 1]))
    axes.set_aspect("equal", adjustable="box")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(HAIR)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DOTS, facecolor="white")
    return stream.getvalue()
