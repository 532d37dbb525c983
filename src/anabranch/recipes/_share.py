"""How far a run is that another process is busy with."""

from __future__ import annotations

from pathlib import Path

from anabranch.methods.ffm import POTENTIAL_COUPLINGS
from anabranch.runs import Config, RunFolder


def round_of(path: Path) -> int:
    """The last round that it logged."""
    records = RunFolder(path).metrics()
    return int(records[-1]["round"]) if records else 0


def share_of(config: Config, path: Path) -> float:
    """How much of its rounds are done."""
    settings, total = config.settings, config.flow.rounds
    if settings.coupling.name in POTENTIAL_COUPLINGS:
        total += settings.potential.before
    if settings.coupling.name == "semidiscrete":
        total += settings.semidiscrete.rounds
    return min(1.0, round_of(path) / total)
