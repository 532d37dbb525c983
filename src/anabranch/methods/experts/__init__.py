"""Experts: conditional flows trained in silos, and what can be made of many of them.

FedFlow averages them, DDM routes between them, DFD weighs them by energy; DCFM starts from them. A silo's part reads,
in order: `_messages` → `_silo` → `_training`; `Mixture` makes one field of them all.
"""

from anabranch.methods.experts import _silo  # noqa: F401  (registers the silo half)
from anabranch.methods.experts._half import (
    ExpertHalf,
    bind,
    expert_network,
    expert_of,
    half_of,
    precision_warnings,
    settings_from_json,
    settings_to_json,
    shared_network,
)
from anabranch.methods.experts._messages import (
    Expert,
    LocalSteps,
    LocalStepsReply,
    Prepare,
    Restore,
    Share,
    Survey,
    SurveyReply,
    Train,
    TrainReply,
)
from anabranch.methods.experts._mixture import WAYS, Mixture, Rule, check_weights
from anabranch.methods.experts._router import samples_of_experts, train_router
from anabranch.methods.experts._routing import Energies, Holders, Learned, Marginals, Router
from anabranch.methods.experts._settings import ExpertSettings, check_training
from anabranch.methods.experts._silo import Tally, check_steps, keep_expert
from anabranch.methods.experts._steps import Steps
from anabranch.methods.experts._training import (
    Example,
    Learner,
    Losses,
    Measured,
    example,
    losses,
    measured,
    shown_attributes,
)

__all__ = [
    "WAYS",
    "Energies",
    "Example",
    "Expert",
    "ExpertHalf",
    "ExpertSettings",
    "Holders",
    "Learned",
    "Learner",
    "LocalSteps",
    "LocalStepsReply",
    "Losses",
    "Marginals",
    "Measured",
    "Mixture",
    "Prepare",
    "Restore",
    "Router",
    "Rule",
    "Share",
    "Steps",
    "Survey",
    "SurveyReply",
    "Tally",
    "Train",
    "TrainReply",
    "bind",
    "check_steps",
    "check_training",
    "check_weights",
    "example",
    "expert_network",
    "expert_of",
    "half_of",
    "keep_expert",
    "losses",
    "measured",
    "precision_warnings",
    "samples_of_experts",
    "settings_from_json",
    "settings_to_json",
    "shared_network",
    "shown_attributes",
    "train_router",
]
