"""Axes of the study `flow_images`: a line for each method on two logarithmic scales, alone or in small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anabranch.report._charts import plain_log
from anabranch.report._style import FEDERATED, SOFT, marker, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
NEAREST = 0.11  # of the axis, between two labels, lest they touch


@dataclass(frozen=True)
class Line:
    """Points of one method, by rising x."""

    x: Sequence[float]
    y: Sequence[float]


Lines = Mapping[str, Line]  # by method


def one_panel(lines: Lines, methods: Sequence[str], stars: Lines = MappingProxyType({})) -> tuple[Figure, Axes]:
    """A figure with its only axes; stars stand beside the lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    _plot(axes, lines, methods)
    for method, star in stars.items():
        axes.plot(star.x, star.y, "*", color=_look(methods.index(method))["color"], markersize=11)
    plain_log(axes, None)
    axes.legend()
    return figure, axes


@dataclass(frozen=True)
class Axis:
    """What stands across, and the places that have labels."""

    name: str
    places: Sequence[float]


def small_multiples(panels: Mapping[str, Lines], methods: Sequence[str], across: Axis, up: str) -> Figure:
    """A panel for each title, all with the same axes, named once, and one legend for all."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // COLUMNS)
    columns = -(-len(panels) // rows)
    figure = Figure(figsize=(max(6.4, 3.1 * columns), 2.7 * rows + 0.9), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        _plot(axes, lines, methods)
        axes.set_title(plain(title))
        axes.tick_params(labelbottom=True)  # also above a place that stays empty
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    plain_log(grid[0], None)
    _label(grid[0], across.places)
    figure.supxlabel(across.name, fontsize=9.5, color=SOFT)
    figure.supylabel(up, fontsize=9.5, color=SOFT)
    handles = {line.get_label(): line for axes in grid for line in axes.get_lines()}
    shown = [plain(method) for method in methods if plain(method) in handles]
    beside = 7 if columns == COLUMNS else 4
    figure.legend([handles[name] for name in shown], shown, loc="outside upper left", ncols=min(beside, len(shown)))
    return figure


def short(number: float) -> str:
    """A number for an axis.

    >>> short(0.25), short(5000), short(160_000)
    ('0.25', '5000', '160k')
    """
    return f"{number / 1000:g}k" if number >= 10_000 else f"{number:g}"


def _label(axes: Axes, places: Sequence[float]) -> None:
    """Labels places of a logarithmic axis; where two are too near, the smaller has none."""
    falling = sorted(places, reverse=True)
    shown = falling[:1]
    for place in falling[1:]:
        if log(shown[-1] / place) >= NEAREST * log(falling[0] / falling[-1]):
            shown.append(place)
    axes.set_xticks(shown, [short(place) for place in shown])
    axes.minorticks_off()


def _look(number: int) -> dict[str, Any]:
    """Of a method, by its number among those of the problem: the same in all its pictures."""
    return {"color": FEDERATED[number % len(FEDERATED)], "marker": marker(number)}


def _plot(axes: Axes, lines: Lines, methods: Sequence[str]) -> None:
    for number, method in enumerate(methods):
        if method in lines:
            line = lines[method]
            axes.plot(line.x, line.y, label=plain(method), markersize=5, **_look(number))
    axes.set(xscale="log", yscale="log")
