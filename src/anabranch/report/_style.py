"""How figures look: colours, fonts, direct labels. No global state of matplotlib is touched for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.methods.ffm import PRESETS
from anabranch.report._read import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, FAINT, HAIR = "#1f2328", "#57606a", "#c4cad1", "#e6e9ed"
# Okabe and Ito's colours, which people with any colour vision tell apart; their yellow and black give way to an olive
# and a brown that stand out on white and against text.
FEDERATED = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8B00", "#8C5A3C")
POOLED = ("#7d8590", "#3d444d", "#a8b0b8")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
EXCHANGES = ("#5b6c8f", "#c9a66b", "#8fb39a", "#b98a9b", "#a3b4d0", "#6f8f8d", "#d0b8a8", "#8d7aa8")


@dataclass(frozen=True)
class Look:
    """One method's colour, marker and dash, the same in every figure."""

    color: str
    marker: str
    dash: str


def looks(comparison: Comparison) -> dict[str, Look]:
    """Colours for federated methods, greys and dashes for pooled baselines.

    Known methods have the same colour on every page, whatever they are compared with; others take what is left.
    """
    result: dict[str, Look] = {}
    for pooled in (False, True):
        names = [name for name in comparison.methods if (name in comparison.pooled) == pooled]
        palette = POOLED if pooled else FEDERATED
        known = [] if pooled else list(PRESETS)
        places = known + [name for name in names if name not in known]
        for i, name in ((places.index(name), name) for name in names):
            dash = "--" if pooled else ("-", ":", "-.")[i // len(palette) % 3]
            result[name] = Look(palette[i % len(palette)], marker(i), dash)
    return result


def marker(number: int) -> str:
    """The marker of the method of this number: where colours come again, it is another one.

    >>> marker(0), marker(8), marker(9)
    ('o', 's', '^')
    """
    return MARKERS[(number + number // len(FEDERATED)) % len(MARKERS)]


def plain(text: str) -> str:
    """A name as matplotlib must get it, lest a dollar begin a formula or a line break widen a label."""
    return " ".join(text.split()).replace("$", r"\$")


@contextmanager
def style() -> Iterator[None]:
    """The settings under which a figure is both made and saved."""
    import matplotlib

    settings = {
        "font.size": 10.0,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 9.0,
        "axes.labelsize": 9.5,
        "axes.labelcolor": SOFT,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": HAIR,
        "grid.linewidth": 0.8,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": SOFT,
        "ytick.labelcolor": SOFT,
        "xtick.labelsize": 9.0,
        "ytick.labelsize": 9.0,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "svg.fonttype": "none",
        "svg.hashsalt": "anabranch",
        "figure.constrained_layout.h_pad": 0.1,
        "figure.constrained_layout.w_pad": 0.08,
    }
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]
        yield


@dataclass(frozen=True)
class EndLabel:
    """A name to stand at the right of the point (x, y) where its line ends."""

    text: str
    x: float
    y: float
    color: str


def label_ends(axes: Axes, labels: list[EndLabel], gap: float = 0.062) -> None:
    """Writes names beside their lines, pushed apart so that none covers another; `gap` in heights of the axes."""
    to_fraction = axes.transScale + axes.transLimits
    wanted = sorted(((float(to_fraction.transform((e.x, e.y))[1]), e) for e in labels), key=lambda pair: pair[0])
    places = _spread([min(1.0, max(0.0, height)) for height, _ in wanted], gap)
    for place, (_, end) in zip(places, wanted, strict=True):
        axes.annotate(
            plain(end.text),
            xy=(end.x, end.y),
            xytext=(1.045, place),
            textcoords="axes fraction",
            color=end.color,
            va="center",
            fontsize=9.5,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.color,
                "linewidth": 0.7,
                "alpha": 0.6,
                "shrinkA": 2,
                "relpos": (0, 0.5),
            },
        )


def _spread(heights: list[float], gap: float) -> list[float]:
    """Rising heights moved as little as a few passes need until neighbours are `gap` apart.

    >>> [round(height, 2) for height in _spread([0.5, 0.5], 0.1)]
    [0.45, 0.55]
    """
    places = list(heights)
    for _ in range(200):
        for i in range(len(places) - 1):
            short = gap - (places[i + 1] - places[i])
            if short > 1e-9:
                places[i] -= short / 2
                places[i + 1] += short / 2
    lowest = min(places, default=0.0)
    return [place - min(0.0, lowest) for place in places]
