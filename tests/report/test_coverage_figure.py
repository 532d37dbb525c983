"""Heat maps of coverage: all of the title is in the picture."""

import pytest
import torch

from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.report._coverage import coverage_figure, draw_coverage
from anabranch.report._style import style

TITLE = "{}: C = 0.75, C_min = 0.75; framed is what no silo has seen"


def coverage(names, silos):
    space = AttributeSpace.of({name: ["a", "b"] for name in names})
    return Coverage(space, {f"silo-{number}": torch.ones(len(space), dtype=torch.long) for number in range(silos)})


@pytest.mark.parametrize(
    ("names", "silos"),
    [(("wind", "rain"), 2), (("wind", "rain"), 1), (("wind", "rain"), 14), (("w" * 90, "r" * 90), 2)],
)
def test_the_title_is_all_there_and_over_the_panels(names, silos):
    title = TITLE.format(" × ".join(names))
    with style():
        figure = coverage_figure(coverage(names, silos), title)
        figure.draw_without_rendering()
    (said,) = figure.texts
    assert "".join(said.get_text().split()).startswith("".join(title.split()))
    box, frame = said.get_window_extent(), figure.bbox
    assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1
    assert all(axes.title.get_window_extent().y1 < box.y0 for axes in figure.axes)


def test_more_silos_than_are_drawn_are_counted():
    with style():
        (said,) = coverage_figure(coverage(("wind", "rain"), 14), "x").texts
    assert "3 more silos are not drawn" in " ".join(said.get_text().split())
    assert draw_coverage(coverage(("wind", "rain"), 2), "x").startswith(b"\x89PNG")
