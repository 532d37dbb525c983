"""What of a silo's data is compared: its points, or its points together with what its classes look like."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.errors import RefusedError, unknown
from anabranch.federation import Silo
from anabranch.metrics import augment
from anabranch.transport import Measure, Shared, measure

# Each view with the width of a point in it, for points of d coordinates.
VIEWS = {"points": lambda d: d, "classes": lambda d: 3 * d, "classes in full": lambda d: 2 * d + d * d}
COVARIANCE = {"classes": "diagonal", "classes in full": "full"}


def view_of(silo: Silo, view: str) -> Measure:
    """The silo's data in this view, in float64 and equally weighted; kept for the next question.

    "classes" adds to every point the mean and the spread of its class along each coordinate, "classes in full" the
    whole square root of the class's covariance: the Euclidean distance between such points is that of OTDD.
    """
    if view not in VIEWS:
        raise unknown("view of the data", view, VIEWS)
    key = f"fedwad/{view}"
    if key not in silo.cache:
        width = VIEWS[view](silo.data.x.shape[1])
        silo.affords(f"the view '{view}' in {width} coordinates", numbers=2 * len(silo) * width)
        points = silo.data.x.double()
        if view in COVARIANCE:
            if not silo.labelled:
                raise RefusedError(
                    f"Silo '{silo.name}' has no labels; a distance between data sets with classes needs them."
                )
            silo.cache[key] = _with_classes(points, silo.data.label, COVARIANCE[view])
        else:
            silo.cache[key] = measure(points)
    found: Measure = silo.cache[key]
    return found


def _with_classes(points: Tensor, label: Tensor, covariance: str) -> Measure:
    """Points with what their classes look like; that part is the same for all points of a class."""
    seen: Measure = measure(augment(points, label, covariance))
    classes, index = torch.unique(label, return_inverse=True)
    first = torch.stack([(index == number).nonzero()[0, 0] for number in range(len(classes))])
    return Measure(seen.points, seen.weight, Shared(seen.points[first, points.shape[1] :], index))


def view_width(view: str, width: int) -> int:
    """How many coordinates points of a view have."""
    return int(VIEWS[view](width))


def plan_work(points: int, support: int, width: int) -> int:
    """Multiplications for one optimal plan between that many points and atoms: its costs, and the simplex's pivots."""
    return points * support * width + 50 * points * support * math.ceil(math.log2(points + support + 1))
