"""How good is it? Distances between samples, straightness of a flow, quality of a coupling."""

from anabranch.metrics._coupling import (
    cost_ratio,
    optimal_cost,
    source_marginal_error,
    total_variation_from_uniform,
    uniform_total_variation,
    usage,
)
from anabranch.metrics._otdd import augment, otdd
from anabranch.metrics._sliced import (
    projection_counts,
    projection_directions,
    projection_edges,
    sliced_wasserstein2,
    sliced_wasserstein2_from_counts,
)
from anabranch.metrics._straightness import path_energy, straightness
from anabranch.metrics._wasserstein import noise_floor, wasserstein2

__all__ = [
    "augment",
    "cost_ratio",
    "noise_floor",
    "optimal_cost",
    "otdd",
    "path_energy",
    "projection_counts",
    "projection_directions",
    "projection_edges",
    "sliced_wasserstein2",
    "sliced_wasserstein2_from_counts",
    "source_marginal_error",
    "straightness",
    "total_variation_from_uniform",
    "uniform_total_variation",
    "usage",
    "wasserstein2",
]
