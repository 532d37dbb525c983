"""Training for the study `composition_images`: every stage once, shared by all methods that begin with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anabranch.federation import Federation, Ledger
from anabranch.methods.dcfm import (
    COMPOSITIONS,
    Composition,
    CompositionServer,
    PeerSettings,
    StudentSettings,
    composition,
    train_composition,
)
from anabranch.methods.experts import Mixture
from anabranch.methods.ffm import Progress
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies._composition_images_data import Scene
from anabranch.recipes.studies._shared import once

GIVEN_BACK = ("experts.restore",)  # sent because a stage is shared by methods; a run of its own does without
EARLIER = ("experts", "peers")  # the phases that are shared
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Cost:
    """What training took: bytes a silo sent and received, on average; passes of a batch in a silo; and seconds.

    Passes at the server (a student's) count beside those in a silo.
    """

    up: float = 0.0
    down: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + theirs for mine, theirs in zip(self.numbers, other.numbers, strict=True)))

    @property
    def numbers(self) -> tuple[float, ...]:
        """In the order above."""
        return tuple(asdict(self).values())


@dataclass(frozen=True)
class Trained:
    """A method's field, its settings, what it cost, and the size of one network."""

    mixture: Mixture
    settings: Composition
    cost: Cost
    parameters: int


def settings_of(method: str, options: Mapping[str, Any], shape: Sequence[int]) -> Composition:
    """A method's preset with the recipe's options laid over it.

    All methods have one network, one λ where they have a λ, and the same steps in each stage that they share. A section
    about a stage that the preset does not have is left out.
    """
    preset = COMPOSITIONS[method]
    sections: dict[str, Any] = {"experts": {**options["experts"], "shape": tuple(shape)}, "every": options["every"]}
    for name in ("federated", "peers", "student", "mixture"):
        if name in preset:
            sections[name] = dict(options.get(name, {}))
    if "experts" in preset:
        sections["experts"].setdefault("penalty", options["penalty"])
    for name in ("peers", "student"):
        if name in preset and "penalty" not in preset[name]:
            sections[name].setdefault("penalty", options["penalty"])
    return composition(method, **sections)


def trained(cell: StudyCell, scene: Scene, device: torch.device) -> Trained:
    """The method of a cell, trained; stages that a cell has trained before are read."""
    settings = settings_of(cell.method, cell.options, scene.shape)
    facts, cost, state = _facts(cell, settings), Cost(), Tensors()
    if not settings.federated.rounds:
        experts = once(cell, "experts", facts, lambda: _experts(cell, settings, scene, device))
        cost = Cost(*experts.pop("cost").tolist())
        if settings.peers.rounds:
            given, facts = _by_silo(experts), {**facts, "peers": asdict(settings.peers)}
            experts = once(cell, "peers", facts, lambda: _peers(cell, settings, scene, device, given))
            # Experts are shared once, in either stage: bytes of the second hold those of the first.
            cost = replace(cost, up=0.0, down=0.0) + Cost(*experts.pop("cost").tolist())
        state = {f"expert/{name}": tensor for name, tensor in experts.items()}
    if last := "federated" if settings.federated.rounds else "student" if settings.student.steps else "":
        facts = {**facts, last: asdict(getattr(settings, last)), "mixture": asdict(settings.mixture)}
        found = once(cell, last, facts, lambda: _last_stage(cell, settings, scene, device, state))
        cost += Cost(*found.pop("cost").tolist())
        state |= found
    server = _server(cell, settings, scene, device, state)
    list(server.run(_rounds(server, (*EARLIER, last))))  # a router that is learned, where there is one
    return Trained(server.mixture(), settings, cost, _size(settings, scene))


def _facts(cell: StudyCell, settings: Composition) -> dict[str, Any]:
    """All that Stage I follows from. The device is not among it: what it computes may be used on any."""
    names = ("source", "source_options", "observed", "train", "silos", "partition", "alpha", "every")
    data = {name: cell.options.get(name) for name in names}
    return {"problem": cell.problem, "seed": cell.seed, **data, "experts": asdict(settings.experts)}


def _experts(cell: StudyCell, settings: Composition, scene: Scene, device: torch.device) -> Tensors:
    """Stage I: every silo's own expert, by "silo/parameter"."""
    alone = replace(settings, peers=PeerSettings(), student=StudentSettings())
    return _stage(cell, alone, scene, device, None)


def _peers(
    cell: StudyCell, settings: Composition, scene: Scene, device: torch.device, given: Mapping[str, Tensors]
) -> Tensors:
    """DCFM-A: the experts of Stage I, trained beside each other."""
    return _stage(cell, replace(settings, student=StudentSettings()), scene, device, given)


def _stage(
    cell: StudyCell,
    settings: Composition,
    scene: Scene,
    device: torch.device,
    given: Mapping[str, Tensors] | None,
) -> Tensors:
    begun = time.perf_counter()
    plain = replace(settings, mixture=replace(settings.mixture, router="holders"))  # a router comes after this stage
    flow = train_composition(scene.federation(cell.seed, device), plain, cell.seed, scene.space, given)
    cost = _cost(flow.ledger, flow.history, plain, time.perf_counter() - begun)
    found = {f"{silo}/{name}": t.cpu() for silo, own in flow.experts.items() for name, t in own.items()}
    return {**found, "cost": torch.tensor(cost.numbers, dtype=torch.float64)}


def _last_stage(cell: StudyCell, settings: Composition, scene: Scene, device: torch.device, before: Tensors) -> Tensors:
    """FedFlow, or the student of the experts in `before`: what the stage adds to the server's state."""
    begun = time.perf_counter()
    server = _server(cell, settings, scene, device, before)
    ledger, silos = server.federation.ledger, len(server.federation.names)
    # What a run of its own would not send twice: with experts, the survey and the settings are theirs already.
    sent = _bytes(ledger, silos) if before else (0.0, 0.0)
    history = list(server.run(_rounds(server, EARLIER)))
    cost = _cost(ledger, history, settings, time.perf_counter() - begun)
    cost = replace(cost, up=cost.up - sent[0], down=cost.down - sent[1])
    found = {name: t.cpu() for name, t in server.state().items() if name not in before}
    return {**found, "cost": torch.tensor(cost.numbers, dtype=torch.float64)}


def _server(
    cell: StudyCell, settings: Composition, scene: Scene, device: torch.device, state: Tensors
) -> CompositionServer:
    """A server that goes on after the stages that are done."""
    federation = Federation(scene.federation(cell.seed, device))
    federation.open(f"composition-images/{cell.method}/{cell.seed}", cell.seed)
    server = CompositionServer(settings, federation, scene.space)
    if state:
        server.load({**{f"shared/{name}": tensor for name, tensor in server.shared.items()}, **state})
    return server


def _rounds(server: CompositionServer, phases: Sequence[str]) -> int:
    """How many rounds these phases have."""
    return sum(phase.rounds for phase in server.phases if phase.name in phases)


def _by_silo(experts: Mapping[str, Tensor]) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for place, tensor in experts.items():
        silo, _, name = place.partition("/")
        found.setdefault(silo, {})[name] = tensor
    return found


def _size(settings: Composition, scene: Scene) -> int:
    """Numbers in one network."""
    from anabranch.methods.experts import expert_network

    dimension = scene.shape[0] * scene.shape[1] * scene.shape[2]
    network = expert_network(settings.experts, dimension, scene.space.sizes)
    return sum(parameter.numel() for parameter in network.parameters())


def _bytes(ledger: Ledger, silos: int) -> tuple[float, float]:
    """Up and down, by silo."""
    counted = [entry for entry in ledger.entries() if entry.kind not in GIVEN_BACK]
    up, down = (sum(entry.bytes for entry in counted if entry.direction == way) / silos for way in ("up", "down"))
    return up, down


def _cost(ledger: Ledger, history: Sequence[Progress], settings: Composition, seconds: float) -> Cost:
    silos = len({entry.silo for entry in ledger.entries()})
    passes = {"forward": 0.0, "backward": 0.0}
    done: dict[str, int] = {}
    for progress in history:
        steps = _steps(progress.phase, settings, done.get(progress.phase, 0), silos)
        done[progress.phase] = done.get(progress.phase, 0) + 1
        for name in passes:
            passes[name] += steps * float(progress.metrics.get(name, 0.0))
    up, down = _bytes(ledger, silos)
    return Cost(up, down, **passes, seconds=seconds)


def _steps(phase: str, settings: Composition, done: int, silos: int) -> float:
    """Training steps of the next round of a phase, in one silo on average, or at the server."""
    if phase == "federated":
        return settings.federated.local_steps
    if phase == "peers":
        return settings.peers.steps / (silos if settings.peers.order == "sequential" else 1)
    total = {"experts": settings.experts.steps, "student": settings.student.steps}.get(phase, 0)
    return max(0, min(settings.every, total - done * settings.every))
