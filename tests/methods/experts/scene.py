"""Four corners in two or three silos: the smallest problem of composition, with nobody in the upper right."""

import torch

from anabranch import seeds
from anabranch.data.attributes import CORNERS, Coverage, corner_points
from anabranch.federation import Federation, Silo

NOVEL = int(CORNERS.encode(CORNERS.parse("horizontal=right,vertical=top")))
LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM = 0, 1, 3
HELD = {"a": (LEFT_TOP, LEFT_BOTTOM), "b": (LEFT_BOTTOM, RIGHT_BOTTOM)}


def corner_silos(count=300, held=HELD, space=CORNERS, **options):
    """One silo for each name, with points of the combinations it holds."""
    found = []
    for name, labels in held.items():
        label = torch.tensor(labels).repeat(-(-count // len(labels)))[:count]
        points = corner_points(label, seeds.generator(0, "corners", name))
        found.append(Silo(name, points.x, points.label, space=space, secret=1, **options))
    return found


def opened(silos, **options):
    """A federation that has begun."""
    federation = Federation(silos, **options)
    federation.open("test", seed=3)
    return federation


def coverage(held=HELD):
    """Who holds what, without points."""
    return Coverage.of(CORNERS, {name: torch.tensor(labels) for name, labels in held.items()})
