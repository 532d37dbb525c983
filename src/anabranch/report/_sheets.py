"""Samples of image flows: a sheet for each method and number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.report._grid import mosaic
from anabranch.report._style import plain, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
PREFIX = "images_"  # of a run's arrays; the number of steps follows
SHOWN = 25
COLUMNS = 5


def sheets_of(arrays: Mapping[str, Array]) -> dict[int, Array]:
    """Images (n, c, h, w) uint8 that a run kept, by a few numbers of steps; nothing where it kept none."""
    found = {int(name.removeprefix(PREFIX)): array for name, array in arrays.items() if name.startswith(PREFIX)}
    steps = sorted(found)
    if len(steps) > COLUMNS:  # the few first ones differ most
        steps = [*steps[: COLUMNS - 1], steps[-1]]
    return {number: found[number] for number in steps}


def sheets_figure(sheets: Mapping[str, Mapping[int, Array]]) -> Figure:
    """A row for each method, a column for each number of steps; all begin from the same noise."""
    from matplotlib.figure import Figure

    columns = max(len(sheet) for sheet in sheets.values())
    width = min(2.6, 11.0 / columns)
    with style():
        size = (columns * width + 0.3, len(sheets) * (width + 0.35) + 0.2)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(sheets), columns, squeeze=False)
        for row, (method, sheet) in zip(panels, sheets.items(), strict=True):
            for axes in row:
                axes.set_axis_off()
            for axes, (steps, images) in zip(row, sheet.items(), strict=False):
                numbers = images[:SHOWN].astype(np.float64).transpose(0, 2, 3, 1) / 255
                shown = np.repeat(numbers, 3, axis=3) if numbers.shape[3] == 1 else numbers[..., :3]
                axes.imshow(mosaic(shown), interpolation="nearest")
                axes.set_title(plain(f"{method}, {steps} step{'s' if steps > 1 else ''}"), fontsize=8)
        return figure
