"""Federated flow matching: one flow, many silos, and a coupling that decides how straight its paths are.

`FlowServer` is the server half; the silo half is a function for each message of `_messages`, which is the whole privacy
surface. A training step reads, in order: `_server` → `_messages` → `_silo` → a file of `coupling/` → `flow/_paths`.
"""

from anabranch.methods.ffm._half import FlowHalf, half_of
from anabranch.methods.ffm._messages import (
    Award,
    Awarded,
    Gradient,
    GradientReply,
    Histograms,
    HistogramsReply,
    LocalSteps,
    Lookup,
    PotentialGradient,
    PotentialGradientReply,
    Prepare,
    Scores,
    Settle,
    SharePotential,
)
from anabranch.methods.ffm._presets import PRESETS, TrainedFlow, preset, train_flow
from anabranch.methods.ffm._semidiscrete import dual_of, place
from anabranch.methods.ffm._server import FlowServer, Phase, Progress
from anabranch.methods.ffm._settings import (
    IMAGE_NETWORKS,
    POTENTIAL_COUPLINGS,
    CouplingSettings,
    FlowMatching,
    FlowSettings,
    ImageSettings,
    PotentialSettings,
    SemiDiscreteSettings,
    coupling_names,
    register_coupling,
)
from anabranch.methods.ffm._velocity import FlowVelocity

__all__ = [
    "IMAGE_NETWORKS",
    "POTENTIAL_COUPLINGS",
    "PRESETS",
    "Award",
    "Awarded",
    "CouplingSettings",
    "FlowHalf",
    "FlowMatching",
    "FlowServer",
    "FlowSettings",
    "FlowVelocity",
    "Gradient",
    "GradientReply",
    "Histograms",
    "HistogramsReply",
    "ImageSettings",
    "LocalSteps",
    "Lookup",
    "Phase",
    "PotentialGradient",
    "PotentialGradientReply",
    "PotentialSettings",
    "Prepare",
    "Progress",
    "Scores",
    "SemiDiscreteSettings",
    "Settle",
    "SharePotential",
    "TrainedFlow",
    "coupling_names",
    "dual_of",
    "half_of",
    "place",
    "preset",
    "register_coupling",
    "train_flow",
]
