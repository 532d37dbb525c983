"""Grids of samples: every combination has its cell, and what no silo has seen is framed."""

import numpy as np
import pytest

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import UsageError
from anabranch.report import Cells, draw_grid, draw_sheet
from anabranch.report._grid import _pixels, grid_figure, mosaic
from anabranch.report._style import style


def cells(space, shape=(), missing=()):
    count = len(space)
    label = np.repeat(np.array([each for each in range(count) if each not in missing]), 2)
    x = np.random.default_rng(0).uniform(0, 1, (len(label), int(np.prod(shape)) if shape else 2))
    observed, determined = np.arange(count) % 3 != 1, np.arange(count) != 1
    return Cells(x, label, space, observed, determined, shape)


def frames(figure):
    """Linestyles of the frames about novel cells, by panel."""
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    found = []
    for axes in figure.axes:
        patches = [p for p in axes.patches if isinstance(p, Rectangle) and to_hex(p.get_edgecolor()) == "#d55e00"]
        found.append([patch.get_linestyle() for patch in patches])
    return found


def test_novel_cells_are_framed_and_undetermined_ones_dashed():
    space = AttributeSpace.of({"a": "12", "b": "123"})
    with style():
        figure = grid_figure(cells(space), "two attributes")
    (found,) = frames(figure)
    assert len(found) == 2 and sum(style == "-" for style in found) == 1  # labels 1, dashed, and 4
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["no silo has seen it", "no silo has seen it, nor does it follow from what was seen"]


def test_a_third_attribute_has_a_panel_for_each_outcome():
    space = AttributeSpace.of({"a": "12", "b": "12", "c": "123"})
    with style():
        figure = grid_figure(cells(space, (1, 4, 4), missing=(0, 3)), "three attributes")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["c = 1", "c = 2", "c = 3"]
    assert [len(axes.images) for axes in figure.axes] == [2, 4, 4]  # of c = 1 two are not drawn
    assert figure.legends[0].get_texts()[-1].get_text() == "no expert has met an outcome"


def scale(axis):
    """Where the small ticks are, and what they say."""
    texts = [label.get_text().replace("−", "-") for label in axis.get_ticklabels(minor=True)]
    return dict(zip(texts, axis.get_minorticklocs().tolist(), strict=False)), len(texts)


def test_points_have_a_scale_on_the_outer_axes_and_images_none():
    space = AttributeSpace.of({"a": "12", "b": "123"})
    known = cells(space)
    with style():
        (axes,) = grid_figure(known, "points").axes
        (bare,) = grid_figure(cells(space, (1, 4, 4)), "images").axes
    (across, many), (down, few) = scale(axes.xaxis), scale(axes.yaxis)
    assert many % 3 == few % 2 == 0 and 2 <= len(across) <= 5 and scale(bare.xaxis)[1] == 0
    left = [patch for patch in axes.collections if patch.get_offsets()[0, 0] > 1.5][-1].get_offsets()  # the last cell
    true = known.x[known.label == 5]
    for place, (ticks, at) in enumerate(((across, left[:, 0]), (down, left[:, 1]))):
        values = sorted(map(float, ticks))
        places = [ticks[f"{value:g}"] for value in values]  # the last of each: that of the last column and row
        slope = (places[-1] - places[0]) / (values[-1] - values[0])
        assert np.allclose(places[0] + slope * (true[:, place] - values[0]), at)


def test_small_cells_share_one_scale_in_the_corner():
    space = AttributeSpace.of({"a": "1234567890", "b": "1234567890ab"})
    with style():
        (axes,) = grid_figure(cells(space), "small").axes
    assert axes.xaxis.get_minorticklocs().max() < 0.5 and axes.yaxis.get_minorticklocs().min() > 8.5


def test_pictures_are_png_and_four_attributes_are_refused():
    space = AttributeSpace.of({"a": "12", "b": "12"})
    assert draw_grid(cells(space, (3, 2, 2)), "$images$").startswith(b"\x89PNG")
    assert draw_sheet(np.zeros((5, 12)), (3, 2, 2), "sheet").startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="two or three attributes, and there are 4"):
        draw_grid(cells(AttributeSpace.of({"a": "12", "b": "12", "c": "12", "d": "12"})), "four")


def test_pixels_count_from_zero_or_from_minus_one():
    assert _pixels(np.array([[[[0.0, 1.0]]]])).tolist() == [[[[0.0] * 3, [1.0] * 3]]]
    assert _pixels(np.array([[[[-1.0, 0.0]]]])).tolist() == [[[[0.0] * 3, [0.5] * 3]]]
    assert mosaic(np.zeros((3, 2, 2, 3))).shape == (5, 5, 3)
