"""FedWAD: the Wasserstein distance between data sets that never meet."""

from anabranch.methods.fedwad import _silo  # noqa: F401  (registers the silo half)
from anabranch.methods.fedwad._cluster import adjusted_rand_index, affinity, cluster, groups, neighbour_graph
from anabranch.methods.fedwad._comparison import Round, Side
from anabranch.methods.fedwad._coreset import Coreset, exact_coreset, learn_coreset, silo_coresets
from anabranch.methods.fedwad._labels import Label, LabelReply, label_coresets, nearest_neighbour
from anabranch.methods.fedwad._messages import (
    Demand,
    DemandReply,
    Interpolate,
    InterpolateReply,
    Moments,
    MomentsReply,
    Profile,
    ProfileReply,
    Settle,
    SettleReply,
)
from anabranch.methods.fedwad._server import Distance, distance, distances
from anabranch.methods.fedwad._settings import WadSettings
from anabranch.methods.fedwad._slopes import CoresetSettings, exact_slope, federated_slopes
from anabranch.methods.fedwad._views import view_width

__all__ = [
    "Coreset",
    "CoresetSettings",
    "Demand",
    "DemandReply",
    "Distance",
    "Interpolate",
    "InterpolateReply",
    "Label",
    "LabelReply",
    "Moments",
    "MomentsReply",
    "Profile",
    "ProfileReply",
    "Round",
    "Settle",
    "SettleReply",
    "Side",
    "WadSettings",
    "adjusted_rand_index",
    "affinity",
    "cluster",
    "distance",
    "distances",
    "exact_coreset",
    "exact_slope",
    "federated_slopes",
    "groups",
    "label_coresets",
    "learn_coreset",
    "nearest_neighbour",
    "neighbour_graph",
    "silo_coresets",
    "view_width",
]
