"""What is kept at a place: a trained flow or a composition, in the folder of a run or in one that `export` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.coupling import Source
from anabranch.data import Cloud, Encoder, shape
from anabranch.errors import CheckpointError, RunFolderError, UsageError
from anabranch.methods.ffm import FlowMatching
from anabranch.runs._build import source_points
from anabranch.runs._export_card import ENCODER
from anabranch.runs._exported import Exported, exported_at, is_exported, read_exported, read_facts
from anabranch.runs._folder import RunFolder
from anabranch.runs._sample_drawing import last_checkpoint, tell_of_what_is_to_come, which

AVERAGED = "average/average."  # how a checkpoint names the parameters that samples come from
SOURCE = "source/points"  # how an exported file names the tensor of a source that is no formula


@dataclass(frozen=True)
class Kept:
    """What can be sampled at a place: the `method` that made it, whether it is told attributes, whether it makes
    images, and how many classes it is told (0: none)."""

    method: str
    composes: bool
    images: bool
    classes: int = 0


def look_at(place: Path) -> Kept:
    """What a run's folder, or an exported one, holds."""
    if not is_exported(place):
        if place.exists() and not (place / "config.json").exists():
            raise RunFolderError(f"{place} is no run folder, which has a config.json, and no folder that export wrote.")
        config = RunFolder(place).config()
        return Kept(config.method, config.composes, bool(config.images.shape), config.flow.classes)
    with exported_at(place):
        card, facts = read_facts(place)
        method = str(card["method"]["name"])
        if "space" in facts:
            return Kept(method, True, bool(json.loads(facts["shape"])))
        settings = json.loads(facts["settings"])
        return Kept(method, False, bool(settings["images"]["shape"]), settings["flow"].get("classes", 0))


@dataclass(frozen=True)
class TrainedFlow:
    """A flow to sample from: the averaged parameters as a checkpoint names them, where samples begin, what decodes
    them where they are rows of a table, and the facts that tell this flow from others."""

    settings: FlowMatching
    dimension: int
    state: dict[str, Tensor]
    source: Source
    encoder: Encoder | None
    facts: dict[str, Any]


def trained_flow(place: Path) -> TrainedFlow:
    """The flow of a run's last checkpoint, or the exported one."""
    if not is_exported(place):
        return _of_run(RunFolder(place))
    with exported_at(place):
        found = read_exported(place)
        flow = None if found.composes else handed_on(found)
    if flow is None:
        raise UsageError(f"{place} composes attributes; sample it with draw_composed.")
    return flow


def handed_on(found: Exported) -> TrainedFlow:
    """The flow in the files of an exported folder."""
    settings, dimension = FlowMatching.from_json(found.facts["settings"]), int(found.facts["dimension"])
    points = found.tensors.get(SOURCE)
    source: Source = shape(settings.flow.source, dimension) if points is None else Cloud(points)
    state = {f"{AVERAGED}{name}": tensor for name, tensor in found.tensors.items() if name != SOURCE}
    state["average/count"] = torch.tensor(0)
    return TrainedFlow(settings, dimension, state, source, found.encoder, found.which)


def _of_run(folder: RunFolder) -> TrainedFlow:
    config = folder.config()
    if config.composes:
        raise UsageError(
            f"{folder.path} ran '{config.method}', which composes attributes; sample it with draw_composed."
        )
    checkpoint = last_checkpoint(folder)
    if not int(checkpoint.state["flow/steps"]):
        raise CheckpointError(
            f"At round {checkpoint.round} the flow of {folder.path} is untrained: other things come before it. Go on"
            f" with {folder.again}, then sample."
        )
    tell_of_what_is_to_come(folder, checkpoint)
    dimension, given, encoder = int(checkpoint.facts["dimension"]), source_points(config), folder.path / ENCODER
    return TrainedFlow(
        config.settings,
        dimension,
        checkpoint.state,
        shape(config.flow.source, dimension) if given is None else Cloud(given),
        Encoder.from_json(encoder.read_text()) if encoder.exists() else None,
        which(folder, checkpoint),
    )
