"""Pictures of points in motion: where the flow takes them, and where a single step lands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.report._read import Comparison
from anabranch.report._style import FAINT, HAIR, INK, Look, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
SHOWN = 1500  # points of a cloud; more only thicken it


@dataclass(frozen=True)
class Scene:
    """What one panel shows, reduced to the plane: `paths` (times, n, 2), clouds (n, 2); target and landing may lack."""

    method: str
    paths: Array
    source: Array
    target: Array | None
    landing: Array | None
    steps: int
    dimension: int


def scenes(comparison: Comparison, problem: str) -> list[Scene]:
    """One scene a method, of its lowest seed that has finished."""
    found = []
    for method in comparison.methods:
        runs = [run for run in comparison.of(problem, method) if run.finished]
        arrays = runs[0].arrays() if runs else {}
        if "trajectories" in arrays and "source" in arrays:
            found.append(_scene(method, arrays))
    return found


def _scene(method: str, arrays: dict[str, Array]) -> Scene:
    paths = arrays["trajectories"].reshape(*arrays["trajectories"].shape[:2], -1)
    dimension = paths.shape[2]
    counts = sorted(int(name.removeprefix("generated_")) for name in arrays if name.startswith("generated_"))
    steps = counts[0] if counts else 0
    if dimension == 1:  # a line has no plane of its own: time is the other axis
        time = np.broadcast_to(np.linspace(0, 1, len(paths))[:, None, None], paths.shape)
        paths = np.concatenate([time, paths], axis=2)
    clouds = {
        "source": _plane(arrays["source"], 0.0),
        "target": _plane(arrays["target"], 1.0) if "target" in arrays else None,
        "landing": _plane(arrays[f"generated_{steps}"], 1.0) if counts else None,
    }
    source = clouds["source"]
    assert source is not None
    return Scene(method, paths[..., :2], source, clouds["target"], clouds["landing"], steps, dimension)


def _plane(points: Array, time: float) -> Array:
    flat = points.reshape(len(points), -1)[:SHOWN]
    return np.insert(flat, 0, time, axis=1) if flat.shape[1] == 1 else flat[:, :2]


def frame(shown: list[Scene]) -> Array:
    """The corners (2, 2) that hold every scene of a problem; a path that flies off does not shrink the others."""
    clouds = [cloud for scene in shown for cloud in (scene.source, scene.target) if cloud is not None]
    return _corners([*clouds, *(_bulk(scene.paths) for scene in shown)])


def landing_frame(shown: list[Scene]) -> Array:
    """The same for where points land: smaller, since the sources are not in it."""
    targets = [scene.target for scene in shown if scene.target is not None]
    return _corners([*targets, *(_bulk(scene.landing) for scene in shown if scene.landing is not None)])


def _bulk(points: Array) -> Array:
    """The extremes, but no farther out than half the width of all but a hundredth of the points."""
    flat = points.reshape(-1, 2)
    low, high = np.quantile(flat, (0.005, 0.995), axis=0)
    reach = (high - low) / 2
    return np.stack([np.maximum(flat.min(0), low - reach), np.minimum(flat.max(0), high + reach)])


def _corners(clouds: list[Array]) -> Array:
    points = np.concatenate(clouds)
    low, high = points.min(0), points.max(0)
    margin = 0.05 * np.maximum(high - low, 1e-6)
    low, high = low - margin, high + margin
    slack = np.maximum(0.0, 0.5 * (high - low).max() - (high - low)) / 2  # never flatter than two to one
    return np.stack([low - slack, high + slack])


def draw_paths(axes: Axes, scene: Scene, look: Look, corners: Array) -> None:
    """Target faint, sources dark, the learned paths in the method's colour."""
    from matplotlib.collections import LineCollection

    _prepare(axes, corners, scene)
    if scene.target is not None:
        axes.scatter(scene.target[:, 0], scene.target[:, 1], s=5, color=FAINT, linewidths=0, zorder=1)
    lines = LineCollection(list(scene.paths.transpose(1, 0, 2)), colors=look.color, linewidths=0.6, alpha=0.45)
    axes.add_collection(lines, autolim=False)
    axes.scatter(scene.paths[0, :, 0], scene.paths[0, :, 1], s=5, color=INK, linewidths=0, zorder=3, alpha=0.85)
    axes.scatter(scene.paths[-1, :, 0], scene.paths[-1, :, 1], s=6, color=look.color, linewidths=0, zorder=4)


def draw_landing(axes: Axes, scene: Scene, look: Look, corners: Array) -> None:
    """The target faint, and over it what the fewest steps generate."""
    _prepare(axes, corners, scene)
    if scene.target is not None:
        axes.scatter(scene.target[:, 0], scene.target[:, 1], s=7, color=FAINT, linewidths=0, zorder=1)
    if scene.landing is not None:
        axes.scatter(scene.landing[:, 0], scene.landing[:, 1], s=5, color=look.color, linewidths=0, zorder=2, alpha=0.7)


def panel(scene: Scene, look: Look, corners: Array, width: float, landing: bool) -> Figure:
    """One picture without words, `width` inches wide, for the page, which writes its own."""
    from matplotlib.figure import Figure

    wide, high = corners[1] - corners[0]
    figure = Figure(figsize=(width, width * float(high / wide) if scene.dimension > 1 else 0.8 * width))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    (draw_landing if landing else draw_paths)(axes, scene, look, corners)
    axes.set_frame_on(False)
    return figure


def paths_figure(shown: list[Scene], looks: dict[str, Look], captions: dict[str, str]) -> Figure:
    """All methods of a problem side by side, on the same axes (FFM, Figures 2 and 4)."""
    from matplotlib.figure import Figure

    columns = min(len(shown), 5)
    rows = -(-len(shown) // columns)
    corners = frame(shown)
    wide, high = corners[1] - corners[0]
    height = 2.6 * (float(high / wide) if shown[0].dimension > 1 else 0.8) + 0.5
    figure = Figure(figsize=(2.6 * columns, height * rows), layout="constrained")
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat[len(shown) :]:
        axes.set_axis_off()
    for axes, scene in zip(grid.flat, shown, strict=False):
        draw_paths(axes, scene, looks[scene.method], corners)
        axes.set_title(plain(scene.method), color=looks[scene.method].color)
        axes.set_xlabel(plain(captions.get(scene.method, "")))
    return figure


def _prepare(axes: Axes, corners: Array, scene: Scene) -> None:
    axes.set_xlim(float(corners[0, 0]), float(corners[1, 0]))
    axes.set_ylim(float(corners[0, 1]), float(corners[1, 1]))
    if scene.dimension > 1:
        axes.set_aspect("equal", adjustable="box")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(HAIR)
