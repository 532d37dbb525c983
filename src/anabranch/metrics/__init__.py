"""How good is it? Distances between samples, straightness of a flow, quality of a coupling, images and attributes."""

from anabranch.metrics._class_layer import ClassLayer
from anabranch.metrics._classifier import AttributeClassifier, Conformity, conformity
from anabranch.metrics._coupling import (
    cost_ratio,
    optimal_cost,
    source_marginal_error,
    total_variation_from_uniform,
    uniform_total_variation,
    usage,
)
from anabranch.metrics._fid_report import fid_report
from anabranch.metrics._frechet import Extrapolated, extrapolated_frechet, frechet_bias, frechet_distance
from anabranch.metrics._hits import by_combination, hit_rate
from anabranch.metrics._inception import Inception
from anabranch.metrics._inception_score import InceptionScore, class_probabilities, inception_score
from anabranch.metrics._kid import KernelDistance, kernel_distance
from anabranch.metrics._memorisation import Memorisation, memorisation, memorisation_threshold
from anabranch.metrics._otdd import augment, otdd
from anabranch.metrics._pixels import resize, to_bytes
from anabranch.metrics._precision_recall import PrecisionRecall, precision_recall
from anabranch.metrics._reference import Reference, reference, reference_statistics
from anabranch.metrics._sliced import (
    projection_counts,
    projection_directions,
    projection_edges,
    sliced_wasserstein2,
    sliced_wasserstein2_floor,
    sliced_wasserstein2_from_counts,
)
from anabranch.metrics._statistics import FeatureStatistics
from anabranch.metrics._straightness import path_energy, straightness
from anabranch.metrics._wasserstein import noise_floor, wasserstein2

__all__ = [
    "AttributeClassifier",
    "ClassLayer",
    "Conformity",
    "Extrapolated",
    "FeatureStatistics",
    "Inception",
    "InceptionScore",
    "KernelDistance",
    "Memorisation",
    "PrecisionRecall",
    "Reference",
    "augment",
    "by_combination",
    "class_probabilities",
    "conformity",
    "cost_ratio",
    "extrapolated_frechet",
    "fid_report",
    "frechet_bias",
    "frechet_distance",
    "hit_rate",
    "inception_score",
    "kernel_distance",
    "memorisation",
    "memorisation_threshold",
    "noise_floor",
    "optimal_cost",
    "otdd",
    "path_energy",
    "precision_recall",
    "projection_counts",
    "projection_directions",
    "projection_edges",
    "reference",
    "reference_statistics",
    "resize",
    "sliced_wasserstein2",
    "sliced_wasserstein2_floor",
    "sliced_wasserstein2_from_counts",
    "source_marginal_error",
    "straightness",
    "to_bytes",
    "total_variation_from_uniform",
    "uniform_total_variation",
    "usage",
    "wasserstein2",
]
