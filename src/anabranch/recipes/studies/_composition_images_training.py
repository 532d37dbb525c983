"""Training for the study `composition_images`: a recipe's options as settings of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from anabranch.errors import UsageError
from anabranch.methods.dcfm import COMPOSITIONS, Composition, composition
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import _composition_stages as stages
from anabranch.recipes.studies._composition_images_data import Scene
from anabranch.recipes.studies._progress import Told

# What a scene follows from, beside the problem and the seed.
DATA = ("source", "source_options", "observed", "train", "silos", "partition", "alpha", "division")

STAGES = ("federated", "peers", "student", "mixture")  # sections about what some methods have and others do not


def looks_at(method: str, option: str) -> bool:
    """Whether a method's figures may follow from an option: from a section about a stage of others they do not."""
    return option not in STAGES or option in COMPOSITIONS.get(method, {})


def settings_of(method: str, options: Mapping[str, Any], shape: Sequence[int]) -> Composition:
    """A method's preset with the recipe's options laid over it.

    All methods have one network, and one λ where they have a λ. A section about a stage that the preset does not have
    is left out. With a `budget` silos train as long for every method: see `within_budget`.
    """
    preset = COMPOSITIONS[method]
    sections: dict[str, Any] = {"experts": {**options["experts"], "shape": tuple(shape)}, "every": options["every"]}
    for name in STAGES:
        if looks_at(method, name):
            sections[name] = dict(options.get(name, {}))
    if "experts" in preset:
        sections["experts"].setdefault("penalty", options["penalty"])
    for name in ("peers", "student"):
        if name in preset and "penalty" not in preset[name]:
            sections[name].setdefault("penalty", options["penalty"])
    settings = composition(method, **sections)
    if "budget" not in options:
        return settings
    for section, steps in (("experts", "steps"), ("federated", "local_steps")):
        if steps in options.get(section, {}):
            what = f"{section}.{steps}"
            raise UsageError(f"budget says how many steps silos take, and so does {what}; leave one of them out.")
    return within_budget(options["budget"], settings)


def within_budget(budget: int, settings: Composition) -> Composition:
    """Shares out a silo's steps: Stage I has what those beside peers leave, and rounds of FedFlow are of equal length.

    A method that trains its experts in two stages would otherwise have trained them longer than its rivals. What a
    student takes at the server is not a silo's.

    >>> within_budget(6000, composition("dcfm-a", peers={"rounds": 4, "steps": 300})).experts.steps
    4800
    """
    beside, rounds = settings.peers.rounds * settings.peers.steps, settings.federated.rounds
    if beside >= budget:
        raise UsageError(f"budget is {budget}, and {beside} steps are beside peers: none is left for Stage I.")
    if rounds and budget % rounds:
        raise UsageError(f"budget is {budget}, which {rounds} rounds of FedFlow cannot share; give a multiple of them.")
    federated = replace(settings.federated, local_steps=budget // rounds) if rounds else settings.federated
    return replace(settings, experts=replace(settings.experts, steps=budget - beside), federated=federated)


def trained(cell: StudyCell, scene: Scene, device: torch.device, told: Told) -> stages.Trained:
    """The method of a cell, trained; stages that a cell has trained before are read."""
    settings = settings_of(cell.method, cell.options, scene.shape)
    facts = {"problem": cell.problem, **{name: cell.options.get(name) for name in DATA}}
    task = stages.Task(cell, settings, lambda: scene.federation(cell.seed, device), scene.space, facts, told)
    return stages.trained(task)
