"""The methods by name, as sections laid over the defaults."""

from __future__ import annotations

from typing import Any

from anabranch.errors import UsageError
from anabranch.methods.dcfm._settings import Composition

_LOCAL = {"experts": {"penalty": 5.0}}
_DCFM = {**_LOCAL, "mixture": {"router": "holders"}}

COMPOSITIONS: dict[str, dict[str, Any]] = {
    "fedflow": {"federated": {"rounds": 120}},
    "fedflow+l": {"federated": {"rounds": 120}, **_LOCAL},
    "ddm": {"mixture": {"router": "marginals"}},
    "ddm+l": {"mixture": {"router": "marginals"}, **_LOCAL},
    "ddm-learned": {"mixture": {"router": "learned", "top": 1}},
    "ddm-learned+l": {"mixture": {"router": "learned", "top": 1}, **_LOCAL},
    "dfd": {"mixture": {"router": "energy"}},
    "dfd+l": {"mixture": {"router": "energy"}, **_LOCAL},
    "dcfm-a": {**_DCFM, "peers": {"rounds": 3}},
    "dcfm-a-simultaneous": {**_DCFM, "peers": {"rounds": 1, "order": "simultaneous", "steps": 1200}},
    "dcfm-b": {**_DCFM, "student": {"steps": 1200}},
    "additive": {**_DCFM, "student": {"steps": 1200, "additive": True, "penalty": 0.0}},
    "hybrid": {**_DCFM, "peers": {"rounds": 3}, "student": {"steps": 1200, "paths": "composed", "penalty": 0.0}},
}
"""FedFlow (Tun et al. 2023), DDM (McAllister et al. 2025) and DFD (Hahn and Lee 2025), each plain and with the local
penalty; DCFM-A in turn and, as printed, at once; DCFM-B; and two of ours: a student that is additive by construction,
and a student of DCFM-A's experts on composed paths."""


def check_stages(method: str, settings: Composition) -> None:
    """Refuses settings that add a stage to a named method, or take one away: it would be another method."""
    preset = COMPOSITIONS[method]
    for section, key in (("federated", "rounds"), ("peers", "rounds"), ("student", "steps")):
        has, given = section in preset, getattr(getattr(settings, section), key)
        if has != bool(given):
            said = "needs what" if has else "has none of what"
            raise UsageError(
                f"{section}.{key} is {given}, but '{method}' {said} that section describes;"
                f" {'give a number above 0' if has else 'leave it out'}, or choose another method."
            )
