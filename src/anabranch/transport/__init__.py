"""What is the optimal plan?

Costs, exact and entropic plans, c-transforms; always with c(x0, x1) = ½‖x0 − x1‖². Nothing here knows of
networks or silos.
"""

from anabranch.transport._bounds import lower_bound, profile
from anabranch.transport._bures import bures, square_root
from anabranch.transport._certificate import DualityGap, duality_gap
from anabranch.transport._cost import Nearest, half_squared_cost, nearest
from anabranch.transport._ctransform import (
    CTransform,
    DescentResult,
    SoftCTransform,
    c_transform,
    c_transform_descent,
    semidual,
    soft_c_transform,
)
from anabranch.transport._exact import IndexPairs, Plan, assignment, exact_cost, exact_plan, sample_pairs
from anabranch.transport._geodesic import (
    Crossing,
    Interpolation,
    barycentres,
    crossing,
    crossing_distance,
    interpolate,
    spread,
    thinned,
    wasserstein,
)
from anabranch.transport._measure import Measure, Shared, measure
from anabranch.transport._semidiscrete import SemiDual, bisect, lookup, step_at
from anabranch.transport._sinkhorn import Sinkhorn, SinkhornResult, sinkhorn

__all__ = [
    "CTransform",
    "Crossing",
    "DescentResult",
    "DualityGap",
    "IndexPairs",
    "Interpolation",
    "Measure",
    "Nearest",
    "Plan",
    "SemiDual",
    "Shared",
    "Sinkhorn",
    "SinkhornResult",
    "SoftCTransform",
    "assignment",
    "barycentres",
    "bisect",
    "bures",
    "c_transform",
    "c_transform_descent",
    "crossing",
    "crossing_distance",
    "duality_gap",
    "exact_cost",
    "exact_plan",
    "half_squared_cost",
    "interpolate",
    "lookup",
    "lower_bound",
    "measure",
    "nearest",
    "profile",
    "sample_pairs",
    "semidual",
    "sinkhorn",
    "soft_c_transform",
    "spread",
    "square_root",
    "step_at",
    "thinned",
    "wasserstein",
]
