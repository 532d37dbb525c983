"""FedWAD: the Wasserstein distance between data sets that never meet."""

from anabranch.methods.fedwad import _silo  # noqa: F401  (registers the silo half)
from anabranch.methods.fedwad._cluster import adjusted_rand_index, affinity, cluster, groups, neighbour_graph
from anabranch.methods.fedwad._comparison import Round, Side
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
from anabranch.methods.fedwad._views import view_width

__all__ = [
    "Demand",
    "DemandReply",
    "Distance",
    "Interpolate",
    "InterpolateReply",
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
    "groups",
    "neighbour_graph",
    "view_width",
]
