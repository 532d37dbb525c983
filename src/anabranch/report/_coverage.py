"""Pictures of coverage: who has seen which combination of attributes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.report._style import FEDERATED, INK, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
DOTS, CELL, LARGEST = 130, 0.3, 4.5  # dots an inch, inches of a cell and of a heat map
MOST_PANELS, MOST_PAIRS, COLUMNS = 11, 6, 4  # silos and pairs that are drawn, and panels beside each other
NUMBERED, NAMED = 15, 30  # outcomes beyond which cells have no counts, and axes no names
LINE = 0.19  # inches of a line of a title


@dataclass(frozen=True)
class _Panel:
    """Counts of one silo, or of all, for one pair of attributes."""

    title: str
    first: int
    second: int
    counts: Array
    every: bool  # of all silos together


def draw_coverage(coverage: Coverage, title: str) -> bytes:
    """Heat maps of counts, all silos first and then each, as PNG; combinations that nobody has seen are framed.

    For more than two attributes there is a column for each pair of them, in which the others are summed over; there, a
    frame is about a pair of outcomes that never occurs together.
    """
    with style():
        stream = io.BytesIO()
        coverage_figure(coverage, title).savefig(stream, format="png", dpi=DOTS, facecolor="white")
        return stream.getvalue()


def coverage_figure(coverage: Coverage, title: str) -> Figure:
    """The same as a figure."""
    from matplotlib.figure import Figure

    pairs = list(combinations(range(coverage.space.k), 2))[:MOST_PAIRS]
    panels = _panels(coverage, pairs)
    columns = len(pairs) if len(pairs) > 1 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    widest = max(len(coverage.space.attributes[panel.second][1]) for panel in panels)
    highest = max(len(coverage.space.attributes[panel.first][1]) for panel in panels)
    size = (1.5 + min(LARGEST, CELL * widest), 1.6 + min(LARGEST, CELL * highest))
    figure = Figure(figsize=(max(6.5, columns * size[0]), 0.5 + rows * size[1]), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.set_axis_on()
        _draw(axes, panel, coverage.space)
    _head(figure, plain(f"{title}{_not_drawn(coverage)}"))
    return figure


def _head(figure: Figure, title: str) -> None:
    """Writes the title in as many lines as the figure is too narrow for, and makes room for them."""
    head, letters = figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold"), len(title)
    while letters > 1 and head.get_window_extent().width > 0.97 * figure.bbox.width:
        letters = int(0.97 * letters)
        head.set_text("\n".join(wrap(title, letters)))
    figure.set_figheight(figure.get_figheight() + LINE * head.get_text().count("\n"))


def _not_drawn(coverage: Coverage) -> str:
    """How much there is that a picture leaves out, to go on in its title."""
    hidden = {
        "silos": len(coverage.counts) - MOST_PANELS,
        "pairs of attributes": comb(coverage.space.k, 2) - MOST_PAIRS,
    }
    return "".join(f"; {number} more {what} are not drawn" for what, number in hidden.items() if number > 0)


def _panels(coverage: Coverage, pairs: Sequence[tuple[int, int]]) -> list[_Panel]:
    """Row by row: all silos, then each of the first ones; of each, every pair of attributes."""
    counted: list[tuple[str, Tensor]] = [("all silos", coverage.total)]
    if len(coverage.counts) > 1:
        counted += list(coverage.counts.items())[:MOST_PANELS]
    panels = []
    for number, (name, count) in enumerate(counted):
        table = count.cpu().reshape(coverage.space.sizes).numpy()
        for first, second in pairs:
            others = tuple(axis for axis in range(coverage.space.k) if axis not in (first, second))
            panels.append(_Panel(name, first, second, table.sum(axis=others), number == 0))
    return panels


def _draw(axes: Axes, panel: _Panel, space: AttributeSpace) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    top = max(1, int(panel.counts.max()))
    axes.imshow(panel.counts, cmap="Blues", norm=PowerNorm(0.5, 0, top), aspect="auto")
    if max(panel.counts.shape) <= NUMBERED:
        for (row, column), count in np.ndenumerate(panel.counts):
            if count:
                color = "white" if count > 0.35 * top else INK
                axes.text(column, row, _short(int(count)), ha="center", va="center", fontsize=6.5, color=color)
    if panel.every:
        novel = np.argwhere(panel.counts == 0)
        frames = [Rectangle((column - 0.42, row - 0.42), 0.84, 0.84) for row, column in novel]
        line = 1.4 if max(panel.counts.shape) <= NUMBERED else 0.5
        axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=FEDERATED[1], linewidth=line))
    (rows, row_names), (columns, column_names) = (space.attributes[place] for place in (panel.first, panel.second))
    row_names, column_names = (names if len(names) <= NAMED else () for names in (row_names, column_names))
    axes.set_yticks(range(len(row_names)), [plain(name) for name in row_names])
    axes.set_xticks(range(len(column_names)), [plain(name) for name in column_names], rotation=90)
    axes.set_ylabel(plain(rows))
    axes.set_xlabel(plain(columns))
    axes.set_title(plain(panel.title))
    axes.tick_params(length=0, labelsize=8)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _short(count: int) -> str:
    """A count in at most four characters, or about.

    >>> _short(999), _short(1234), _short(45678)
    ('999', '1.2k', '46k')
    """
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"
