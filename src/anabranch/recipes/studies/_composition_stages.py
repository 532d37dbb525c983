"""Stages of a composition, each trained once: cells of a recipe that begin alike share what they begin with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anabranch.data.attributes import AttributeSpace
from anabranch.federation import Federation, Ledger, Silo
from anabranch.methods.dcfm import (
    Composition,
    CompositionServer,
    MixtureSettings,
    PeerSettings,
    StudentSettings,
    train_composition,
)
from anabranch.methods.experts import Mixture, expert_network
from anabranch.methods.ffm import Progress
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies._progress import Told
from anabranch.recipes.studies._shared import Unfinished, once

GIVEN_BACK = ("experts.restore",)  # sent because a stage is shared by methods; a run of its own does without
EARLIER = ("experts", "peers")  # the phases that methods share
PASSES = ("forward", "backward")  # of a batch, among a round's metrics
FLOAT = 4  # bytes
FORM = 4  # of what stages keep, and of how they train: what another one left is not read
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Cost:
    """What training took: bytes a silo sent and received, on average; passes of a batch in a silo; and seconds.

    Passes at the server (a student's) count beside those in a silo. `step_forward` and `step_backward` are those of one
    step of the last stage.
    """

    up: float = 0.0
    down: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    seconds: float = 0.0
    step_forward: float = 0.0
    step_backward: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        both = Cost(*(mine + theirs for mine, theirs in zip(self.numbers, other.numbers, strict=True)))
        last = other if other.step_forward else self
        return replace(both, step_forward=last.step_forward, step_backward=last.step_backward)

    @property
    def numbers(self) -> tuple[float, ...]:
        """In the order above."""
        return tuple(asdict(self).values())


@dataclass(frozen=True)
class Task:
    """What a cell trains: settings, silos, which are made afresh for each stage, and all that their data follow from.

    The device is not among these facts: what it computes may be used on any. `told` is where progress is noted.
    """

    cell: StudyCell
    settings: Composition
    silos: Callable[[], list[Silo]]
    space: AttributeSpace
    facts: Mapping[str, Any]
    told: Told

    def watch(self, progress: Progress) -> None:
        """Notes how far a stage is."""
        self.told.within(progress.round / progress.rounds)

    def server(self, state: Tensors) -> CompositionServer:
        """A server that goes on after the stages that are done."""
        federation = Federation(self.silos())
        federation.open(f"composition/{self.cell.method}/{self.cell.seed}", self.cell.seed)
        server = CompositionServer(self.settings, federation, self.space)
        if state:
            server.load({**{f"shared/{name}": tensor for name, tensor in server.shared.items()}, **state})
        return server


@dataclass(frozen=True)
class Trained:
    """A method's field, its experts by silo, its settings, what it cost, and the numbers of one network."""

    mixture: Mixture
    experts: dict[str, Tensors]
    settings: Composition
    cost: Cost
    parameters: int
    dimension: int

    @property
    def theta_units(self) -> float:
        """What a silo sent and received, in networks."""
        return (self.cost.up + self.cost.down) / (FLOAT * self.parameters)


def trained(task: Task) -> Trained:
    """The method of a cell, trained; stages that a cell has trained before are read."""
    cell, settings = task.cell, task.settings
    facts = {**task.facts, "form": FORM, "seed": cell.seed, "every": settings.every}
    facts["experts"] = asdict(settings.experts)
    cost, state = Cost(), Tensors()
    last = "federated" if settings.federated.rounds else "student" if settings.student.steps else ""
    task.told.parts = (not settings.federated.rounds) + bool(settings.peers.rounds) + bool(last) + 1  # and sampling
    if not settings.federated.rounds:
        experts = once(cell, "experts", facts, lambda: _experts(task))
        task.told.part()
        cost = Cost(*experts.pop("cost").tolist())
        if settings.peers.rounds:
            given, facts = _by_silo(experts), {**facts, "peers": asdict(settings.peers)}
            experts = once(cell, "peers", facts, lambda: _peers(task, given))
            task.told.part()
            # Experts are shared once, in either stage: bytes of the second hold those of the first, but for the
            # questions that Stage I asks, which are a thousandth of it.
            cost = replace(cost, up=0.0, down=0.0) + Cost(*experts.pop("cost").tolist())
        state = {f"expert/{name}": tensor for name, tensor in experts.items()}
    if last:
        facts = {**facts, last: asdict(getattr(settings, last)), "mixture": asdict(settings.mixture)}
        unfinished = Unfinished(cell, last, facts)
        found = once(cell, last, facts, lambda: _last_stage(task, state, unfinished))
        task.told.part()
        cost += Cost(*found.pop("cost").tolist())
        state |= found
    server = task.server(state)
    list(server.run(_rounds(server, (*EARLIER, last))))  # a router that is learned, where there is one
    dimension = server.federation.dimension
    network = expert_network(settings.experts, dimension, task.space.sizes)
    size = sum(parameter.numel() for parameter in network.parameters())
    return Trained(server.mixture(), server.experts, settings, cost, size, dimension)


def _experts(task: Task) -> Tensors:
    """Stage I: every silo's own expert, by "silo/parameter"."""
    return _stage(task, replace(task.settings, peers=PeerSettings(), student=StudentSettings()), None)


def _peers(task: Task, given: Mapping[str, Tensors]) -> Tensors:
    """DCFM-A: the experts of Stage I, trained beside each other."""
    return _stage(task, replace(task.settings, student=StudentSettings()), given)


def _stage(task: Task, settings: Composition, given: Mapping[str, Tensors] | None) -> Tensors:
    begun = time.perf_counter()
    plain = replace(settings, mixture=MixtureSettings())  # a router comes after this stage
    flow = train_composition(task.silos(), plain, task.cell.seed, task.space, given, task.watch)
    cost = _cost(flow.ledger, flow.history, plain, time.perf_counter() - begun)
    found = {f"{silo}/{name}": t.cpu() for silo, own in flow.experts.items() for name, t in own.items()}
    return {**found, "cost": torch.tensor(cost.numbers, dtype=torch.float64)}


def _last_stage(task: Task, before: Tensors, unfinished: Unfinished) -> Tensors:
    """FedFlow, or the student of the experts in `before`: what the stage adds to the server's state.

    It can be long, and between rounds all of it is at the server: where a process was killed, the next goes on.
    """
    begun = time.perf_counter()
    server = task.server(before)
    ledger, silos = server.federation.ledger, len(server.federation.names)
    # With experts, the survey and the settings count as theirs, and are not counted again.
    sent = _bytes(ledger, silos) if before else (0.0, 0.0)
    first, history = _rounds(server, EARLIER), list[Progress]()
    if kept := unfinished.read():
        state, facts = kept
        server.load({**server.state(), **state})
        ledger.load(facts["ledger"])
        history = [Progress(**round) for round in facts["history"]]
        begun -= facts["seconds"]

    def added() -> Tensors:
        return {name: t.cpu() for name, t in server.state().items() if name not in before}

    def facts_now() -> dict[str, Any]:
        seconds = time.perf_counter() - begun
        return {"history": [_plain(progress) for progress in history], "ledger": ledger.state(), "seconds": seconds}

    for progress in server.run(first + len(history)):
        history.append(progress)
        task.told.within((progress.round - first) / (progress.rounds - first))
        unfinished.keep(lambda: (added(), facts_now()))
    cost = _cost(ledger, history, task.settings, time.perf_counter() - begun)
    cost = replace(cost, up=cost.up - sent[0], down=cost.down - sent[1])
    return {**added(), "cost": torch.tensor(cost.numbers, dtype=torch.float64)}


def _plain(progress: Progress) -> dict[str, Any]:
    """A round as JSON: what its cost follows from."""
    metrics = {name: float(value) for name, value in progress.metrics.items() if name in PASSES}
    return {"round": progress.round, "rounds": progress.rounds, "phase": progress.phase, "metrics": metrics}


def _rounds(server: CompositionServer, phases: Sequence[str]) -> int:
    """How many rounds these phases have."""
    return sum(phase.rounds for phase in server.phases if phase.name in phases)


def _by_silo(experts: Mapping[str, Tensor]) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for place, tensor in experts.items():
        silo, _, name = place.partition("/")
        found.setdefault(silo, {})[name] = tensor
    return found


def _bytes(ledger: Ledger, silos: int) -> tuple[float, float]:
    """Up and down, by silo."""
    counted = [entry for entry in ledger.entries() if entry.kind not in GIVEN_BACK]
    up, down = (sum(entry.bytes for entry in counted if entry.direction == way) / silos for way in ("up", "down"))
    return up, down


def _cost(ledger: Ledger, history: Sequence[Progress], settings: Composition, seconds: float) -> Cost:
    silos = len({entry.silo for entry in ledger.entries()})
    passes = dict.fromkeys(PASSES, 0.0)
    done: dict[str, int] = {}
    for progress in history:
        steps = _steps(progress.phase, settings, done.get(progress.phase, 0), silos)
        done[progress.phase] = done.get(progress.phase, 0) + 1
        for name in passes:
            passes[name] += steps * float(progress.metrics.get(name, 0.0))
    up, down = _bytes(ledger, silos)
    last = [progress.metrics for progress in history if "forward" in progress.metrics][-1:]
    step = {f"step_{name}": float(metrics[name]) for metrics in last for name in passes}
    return Cost(up, down, **passes, seconds=seconds, **step)


def _steps(phase: str, settings: Composition, done: int, silos: int) -> float:
    """Training steps of the next round of a phase, in one silo on average, or at the server."""
    if phase == "federated":
        return settings.federated.local_steps
    if phase == "peers":
        return settings.peers.steps / (silos if settings.peers.order == "sequential" else 1)
    total = {"experts": settings.experts.steps, "student": settings.student.steps}.get(phase, 0)
    return max(0, min(settings.every, total - done * settings.every))
