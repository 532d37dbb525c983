"""A composition in a run folder: the experts of Stage I, and the field that samples come from, without any data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.errors import CheckpointError, RunFolderError, UsageError
from anabranch.federation import Message, load, save
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.experts import Mixture, SurveyReply
from anabranch.runs._config import Config
from anabranch.runs._folder import Checkpoint, RunFolder

EXPERTS = (
    "experts.checkpoint"  # the experts of Stage I as silos shared them, before peers or a student changed anything
)
Experts = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Stored:
    """What a checkpoint knows: the field, the dimension of its samples, and for images their shape."""

    mixture: Mixture
    dimension: int
    shape: tuple[int, ...]

    @property
    def coverage(self) -> Coverage:
        """Who had seen which combination."""
        return self.mixture.coverage


def facts_of(server: CompositionServer, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a checkpoint must say beside the server's state, for samples to need nothing else."""
    counts = {silo: count.tolist() for silo, count in server.coverage.counts.items()}
    space, withheld = server.coverage.space.to_json(), dict(server.coverage.withheld)
    return {"space": space, "counts": counts, "withheld": withheld, "shape": list(shape)}


def stored_mixture(config: Config, checkpoint: Checkpoint) -> Stored:
    """The field as of a checkpoint; experts that are still in their silos are not there yet."""
    coverage = _coverage(checkpoint.facts)
    federation = _Remembered(coverage, int(checkpoint.facts["dimension"]), config.seed)
    settings = replace(config.composed, force=True)  # whether coverage suffices was asked when the run began
    server = CompositionServer(settings, federation, coverage.space)  # type: ignore[arg-type]
    server.load(checkpoint.state)
    if not server.experts and not settings.federated.rounds:
        raise CheckpointError(
            f"At round {checkpoint.round} the experts are still in their silos; resume the run, then sample."
        )
    return Stored(server.mixture(), federation.dimension, tuple(checkpoint.facts["shape"]))


def keep_experts(folder: RunFolder, server: CompositionServer) -> None:
    """Writes down what silos shared at the end of Stage I, for other methods to start from."""
    tensors = {f"{silo}/{name}": t for silo, expert in server.experts.items() for name, t in expert.items()}
    if tensors:
        save(folder.path / EXPERTS, tensors, facts_of(server, ()))


def given_experts(config: Config, folder: RunFolder) -> tuple[Experts, Coverage] | None:
    """The experts that the config names, and whose they are; a run that goes on has them in its own folder."""
    if not config.composition.experts_from:
        return None
    if config.federated.rounds:
        raise UsageError(f"'{config.method}' trains one flow in all silos; there are no experts to start from.")
    place = folder.path / EXPERTS  # written in the first round, so that a run that goes on needs no other
    if not folder.checkpoints():
        other = Path(config.composition.experts_from)
        _check_alike(config, RunFolder(other).config(), other)
        place = other / EXPERTS
        if not place.exists():
            raise RunFolderError(f"{other} holds no experts: it has not trained them to the end. Resume it first.")
    tensors, facts = load(place)
    experts: Experts = {}
    for key, tensor in tensors.items():
        silo, _, name = key.partition("/")
        experts.setdefault(silo, {})[name] = tensor
    return experts, _coverage(facts)


def check_holders(given: Coverage, now: Coverage) -> None:
    """Refuses experts of other silos than those that are here, or of other samples."""
    if set(given.counts) != set(now.counts):
        raise UsageError(
            f"The experts are those of {', '.join(sorted(given.counts))}; the silos here are"
            f" {', '.join(sorted(now.counts))}. Both runs need the same silos."
        )
    changed = [silo for silo, count in given.counts.items() if not torch.equal(count, now.counts[silo])]
    if given.space != now.space or changed:
        whose = f"of '{changed[0]}'" if changed else "of all silos"
        raise UsageError(f"The samples {whose} are not those that the experts were trained on; train experts anew.")


def _check_alike(config: Config, other: Config, path: Path) -> None:
    """Whatever made the experts must be the same here, or the config of this run would say what is not so."""
    if not other.composes or other.federated.rounds:
        raise UsageError(f"{path} ran '{other.method}', which has no experts; name a run of DDM, DFD or DCFM.")
    for section in ("experts", "data"):
        mine, theirs = getattr(config, section), getattr(other, section)
        for key in fields(mine):
            a, b = getattr(mine, key.name), getattr(theirs, key.name)
            if a != b:
                raise UsageError(
                    f"{section}.{key.name} is {a!r}, and {b!r} in {path}, where the experts come from; make them alike."
                )


def _coverage(facts: Mapping[str, Any]) -> Coverage:
    try:
        space = AttributeSpace.from_json(facts["space"])
        counts = {silo: torch.tensor(count) for silo, count in facts["counts"].items()}
        return Coverage(space, counts, {silo: int(number) for silo, number in facts.get("withheld", {}).items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("This checkpoint does not say who holds which combination of attributes.") from error


class _Remembered:
    """As much of a federation as rebuilding a server takes: its silos answer what they answered when the run began."""

    quorum = 1
    device = torch.device("cpu")  # where a checkpoint is read; a flow is taken elsewhere when it is sampled

    def __init__(self, coverage: Coverage, dimension: int, seed: int) -> None:
        self.coverage, self.dimension, self.seed = coverage, dimension, seed
        self.names = sorted(coverage.counts)
        told = {silo: int(count.sum()) for silo, count in coverage.counts.items()}
        self.sizes = {silo: number + coverage.withheld.get(silo, 0) for silo, number in told.items()}
        self.weight = dict.fromkeys(self.names, 1.0)

    def everyone(self, question: Message) -> dict[str, Message]:
        space = self.coverage.space.to_json()
        return {silo: SurveyReply(space, self.coverage.counts[silo]) for silo in self.names}

    def hand_out(self, answers: Mapping[str, Message], to: object) -> dict[str, str]:
        return {}
