"""A composition that was handed on, rebuilt from its facts and parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.errors import DataError
from anabranch.methods.dcfm import PeerSettings, Student, student_network
from anabranch.methods.experts import Holders, Mixture, Router, expert_network
from anabranch.runs._config import Config, from_dict
from anabranch.runs._folder import Checkpoint
from anabranch.runs._stored import Stored, stored_mixture

FEDERATED, STUDENT = "average/average.", "student/average/average."  # how a checkpoint names one averaged flow
EXPERT, ROUTER = "expert/", "router/"  # how it names experts, each by its silo, and what was learned to choose them


def rebuilt_composition(facts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Stored:
    """The composition of a model's file; what does not fit together is refused."""
    config = from_dict(json.loads(facts["settings"]))
    if not config.composes:
        raise DataError(f"it is of the method '{config.method}', which composes nothing.")
    dimension, shape = int(facts["dimension"]), tuple(int(side) for side in json.loads(facts["shape"]))
    if dimension < 1 or (shape and prod(shape) != dimension):
        raise DataError(f"samples of {dimension} numbers are no images of {list(shape)}.")
    space = AttributeSpace.from_json(facts["space"])
    counts = {silo: _dense(count, len(space)) for silo, count in json.loads(facts["counts"]).items()}
    coverage = Coverage(space, {silo: torch.tensor(count) for silo, count in counts.items()})
    _check_parameters(config, coverage, dimension, tensors)
    known = {"space": facts["space"], "counts": counts, "dimension": dimension, "shape": shape}
    return _rebuilt(config, coverage, Checkpoint(0, dict(tensors), known))


def _rebuilt(config: Config, coverage: Coverage, file: Checkpoint) -> Stored:
    """The field of a file's parameters: of a student from that alone, otherwise as that of a run folder."""
    first = next(iter(coverage.counts))
    own = {n.removeprefix(f"{EXPERT}{first}/"): t for n, t in file.state.items() if n.startswith(f"{EXPERT}{first}/")}
    dimension, shape = file.facts["dimension"], file.facts["shape"]
    if config.student.steps:
        like = next(iter(own.values()))
        student = Student(config.composed, coverage, like, dimension, seed=0, start=own)
        return Stored(Mixture({first: student.field()}, coverage, Holders(coverage)), dimension, shape)
    state = {f"shared/{name}": tensor for name, tensor in own.items()}
    if config.federated.rounds:
        state |= {"average/count": torch.tensor(0), **{f"{FEDERATED}{name}": tensor for name, tensor in own.items()}}
    else:
        state |= file.state
    alone = replace(config, peers=PeerSettings())  # nobody is there to be handed anything
    return stored_mixture(alone, Checkpoint(0, state, file.facts))


def _check_parameters(config: Config, coverage: Coverage, dimension: int, given: Mapping[str, Tensor]) -> None:
    """Refuses tensors that are not those of the networks that the settings describe."""
    settings, sizes, count = config.composed, coverage.space.sizes, len(coverage.counts)
    one = bool(settings.student.steps or settings.federated.rounds)
    if one and count > 1:
        raise DataError(f"it is of '{config.method}', which makes one flow, and {count} are named.")
    fresh = student_network(settings, dimension, sizes) if settings.student.steps else None
    fresh = fresh or expert_network(settings.experts, dimension, sizes)
    wanted = {f"{EXPERT}{silo}/{n}": p.shape for silo in coverage.counts for n, p in fresh.named_parameters()}
    if not one and settings.mixture.router == "learned":
        wanted |= {f"{ROUTER}{name}": p.shape for name, p in Router(dimension, count).named_parameters()}
    odd = wanted.keys() ^ given.keys() or {
        name for name, tensor in given.items() if tensor.shape != wanted[name] or not tensor.is_floating_point()
    }
    if odd:
        raise DataError(f"its parameters are not those that its settings describe ({', '.join(sorted(odd)[:3])}).")


def _dense(met: Mapping[str, int], combinations: int) -> list[int]:
    dense = [0] * combinations
    for label, count in met.items():
        if not 0 <= int(label) < combinations:
            raise DataError(f"samples of combination {label} are counted, and there are {combinations}.")
        dense[int(label)] = count
    return dense
