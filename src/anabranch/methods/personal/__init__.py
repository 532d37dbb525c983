"""Federated classifiers: FedAvg, and FedPer and FedRep, which leave every silo a head of its own.

`PersonalServer` is the server half; the silo half is a function for each message of `_messages`, which is the whole
privacy surface. A round reads, in order: `_server` → `_messages` → `_silo` → `_descent` → `_networks`.
"""

from anabranch.methods.personal._messages import LocalSteps, LocalStepsReply, Score, ScoreReply
from anabranch.methods.personal._server import PersonalResult, PersonalServer, train_clustered, train_personal
from anabranch.methods.personal._settings import METHODS, Descent, PersonalSettings

__all__ = [
    "METHODS",
    "Descent",
    "LocalSteps",
    "LocalStepsReply",
    "PersonalResult",
    "PersonalServer",
    "PersonalSettings",
    "Score",
    "ScoreReply",
    "train_clustered",
    "train_personal",
]
