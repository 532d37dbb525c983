"""What is the optimal plan?

Costs, exact and entropic plans, c-transforms; always with c(x0, x1) = ½‖x0 − x1‖². Nothing here knows of
networks or silos.
"""

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
from anabranch.transport._semidiscrete import SemiDual, bisect, lookup
from anabranch.transport._sinkhorn import Sinkhorn, SinkhornResult, sinkhorn

__all__ = [
    "CTransform",
    "DescentResult",
    "DualityGap",
    "IndexPairs",
    "Nearest",
    "Plan",
    "SemiDual",
    "Sinkhorn",
    "SinkhornResult",
    "SoftCTransform",
    "assignment",
    "bisect",
    "c_transform",
    "c_transform_descent",
    "duality_gap",
    "exact_cost",
    "exact_plan",
    "half_squared_cost",
    "lookup",
    "nearest",
    "sample_pairs",
    "semidual",
    "sinkhorn",
    "soft_c_transform",
]
