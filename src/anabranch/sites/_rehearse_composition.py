"""A composition in miniature at one site: every kind of question once or twice, with a peer that is the site itself."""

from __future__ import annotations

from typing import Protocol

import torch

from anabranch.data.attributes import AttributeSpace
from anabranch.federation import Federation
from anabranch.methods.dcfm import Adopt, PeerSteps
from anabranch.methods.experts import (
    Expert,
    LocalSteps,
    Prepare,
    Restore,
    Share,
    Survey,
    SurveyReply,
    Train,
    settings_to_json,
)
from anabranch.runs import Config

STEPS = 2  # of training that are played; the time of more is extrapolated


class Phases(Protocol):
    """Whoever notes what questions cost, by phase."""

    phase: str


def rehearse_composition(federation: Federation, config: Config, notes: Phases) -> None:
    """Asks what a run asks, a few training steps at a time; messages are as large as in a whole run.

    The site's own outcomes stand for those of all sites, so that an expert may have some rows more in a real run.
    """
    settings, name = config.composed, federation.names[0]
    known = config.data.space
    reply: SurveyReply = federation.everyone(Survey("" if known is None else known.to_json()))[name]
    space = known.to_json() if known is not None else reply.space
    federation.everyone(Prepare(settings_to_json(settings.experts), space))
    notes.phase = "experts"
    federation.start_round(1)
    federation.everyone(Train(STEPS, 0, settings.experts.steps))
    expert: Expert = federation.everyone(Share())[name]
    if config.composition.experts_from:
        federation.everyone(Restore(expert.parameters))
    if settings.federated.rounds:
        notes.phase = "federated"
        federation.everyone(LocalSteps(expert.parameters, STEPS, settings.experts.rate))
    if settings.peers.rounds:
        federation.hand_out({"another": expert}, [name])
        notes.phase = "peers"
        met = torch.ones(sum(AttributeSpace.from_json(space).sizes), dtype=torch.bool)
        federation.everyone(PeerSteps.of(settings.peers, {"another": met}, STEPS))
        federation.hand_out({"another": expert}, [name])
    if settings.student.steps:
        notes.phase = "student"
        federation.everyone(Adopt(expert.parameters))


def share_of_steps(config: Config, kind: str) -> float:
    """How many times as many steps a real question of the kind asks for."""
    steps = {
        "experts.train": min(config.composition.every, config.experts.steps),
        "experts.local": config.federated.local_steps,
        "dcfm.peers": config.peers.steps,
    }
    return steps.get(kind, STEPS) / STEPS
