"""Decentralized compositional flow matching: combinations of attributes that no silo has seen.

After "Compositional Generative Modeling from Decentralized Data" (Morshed and Boddeti). Experts are trained in silos by
`methods.experts`; this room makes them compose. Read, in order: `_server` → `_peers` (DCFM-A) → `_student` (DCFM-B).
"""

from anabranch.methods.dcfm._messages import Adopt, PeerSteps
from anabranch.methods.dcfm._presets import COMPOSITIONS, check_stages
from anabranch.methods.dcfm._server import CompositionServer
from anabranch.methods.dcfm._settings import (
    Composition,
    FederatedSettings,
    MixtureSettings,
    PeerSettings,
    StudentSettings,
)
from anabranch.methods.dcfm._student import Student, student_kind, student_network
from anabranch.methods.dcfm._survey import survey
from anabranch.methods.dcfm._train import ComposedFlow, composition, train_composition

__all__ = [
    "COMPOSITIONS",
    "Adopt",
    "ComposedFlow",
    "Composition",
    "CompositionServer",
    "FederatedSettings",
    "MixtureSettings",
    "PeerSettings",
    "PeerSteps",
    "Student",
    "StudentSettings",
    "check_stages",
    "composition",
    "student_kind",
    "student_network",
    "survey",
    "train_composition",
]
