"""What is real: short runs are recorded, every kind of message with the silo as it stood before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anabranch.data import Points, Table
from anabranch.data.attributes import AttributeSpace
from anabranch.federation import Envelope, Federation, RemoteEngine, Silo, Site, decode_question
from anabranch.methods.dcfm import train_composition
from anabranch.methods.fedwad import CoresetSettings, WadSettings, distance, label_coresets, silo_coresets
from anabranch.methods.ffm import FlowServer, Gradient, Histograms, preset
from anabranch.methods.personal import PersonalSettings, train_personal
from anabranch.methods.tables import agree
from anabranch.runs import from_dict, merged
from anabranch.transport import measure

# The silos here may do little for one question, so that a question at the bound still takes no time.
MOST_NUMBERS, MOST_WORK = 2**20, 2**30
SMALL = {
    "flow": {"rounds": 2, "batch": 8, "hidden": 4, "layers": 2},
    "potential": {"before": 2, "batch": 8, "hidden": 4, "layers": 2},
    "coupling": {"candidates": 16, "group": 4},
    "semidiscrete": {"rounds": 2, "count": 32, "local_rounds": 2, "noises": 128, "block": 64},
}


@dataclass(frozen=True)
class Scene:
    """A real question and its answer, as they are and as bytes, and the silo as it stood before."""

    silo: Silo
    envelope: Envelope
    asked: bytes
    answered: bytes


def scenes(folder: Path) -> list[Scene]:
    """One or two of every kind of question."""
    found: dict[str, list[Scene]] = {}
    changes = {"lot": {"flow": {"local_steps": 2}}}
    runs: dict[str, Callable[[Federation], None]] = {"fedwad": _compare, "personal": _classify, "dcfm": _compose}
    for method in ("vanilla", "lot", "got-entropic", "sd-protected"):
        runs[method] = partial(_flow, method=method, changes=changes.get(method, {}))
    for name, run in runs.items():
        for scene in _record(folder / name, run):
            found.setdefault(scene.envelope.question.kind, []).append(scene)
    return [scene for kind in sorted(found) for scene in (found[kind][0], found[kind][-1])]


def _record(folder: Path, run: Callable[[Federation], None]) -> list[Scene]:
    taken: list[Scene] = []
    sites = {}
    for name, first in (("north", 20), ("south", 50)):
        rows = [(str(first + number % 30), "day" if number % 3 else "night") for number in range(40)]
        silo = Silo.of_table(name, Table({"age": [a for a, _ in rows], "shift": [b for _, b in rows]}))
        silo.secret, silo.folder = first, folder / name
        silo.most_numbers, silo.most_work = MOST_NUMBERS, MOST_WORK
        silo.hold_out(0.25, seed=0)
        sites[name] = Site(silo)

    def carry(questions: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        answers: dict[str, bytes | BaseException] = {}
        for name, data in questions.items():
            before = fresh(sites[name].silo)
            answers[name] = answer = sites[name].answer(data)
            taken.append(Scene(before, decode_question(data), data, answer))
        return answers

    federation = Federation(RemoteEngine(sites, carry), "uniform")
    agree(federation)
    for site in sites.values():
        site.silo.hold(Points(site.silo.data.x, torch.arange(len(site.silo)) % 2))
    run(federation)
    return taken


def _flow(federation: Federation, method: str, changes: Mapping[str, Any]) -> None:
    """A flow, with checkpoints, a rewind and an evaluation."""
    federation.open("fuzz", seed=1)
    config = from_dict(merged(SMALL, {"coupling": {"name": preset(method).coupling.name}}, changes))
    server = FlowServer(config.settings, federation)
    for _ in server.run():
        federation.keep(0)
    federation.rewind(server.rounds)
    server = FlowServer(config.settings, federation)
    federation.gather(Gradient(server.parameters, {}))
    federation.ask(Histograms(torch.eye(federation.dimension), torch.tensor([[-1.0, 1.0]] * federation.dimension)))


def _compare(federation: Federation) -> None:
    """A distance, of points, of points with their classes, and to a group; coresets with labels."""
    distance(federation, "north", "south", WadSettings(support=4, rounds=2, reveal="each round"))
    distance(federation, "north", "south", WadSettings(support=3, rounds=2, view="classes", t=0.4))
    distance(federation, measure(torch.eye(federation.dimension)), ["north", "south"], WadSettings(support=2, rounds=1))
    coresets = silo_coresets(federation, CoresetSettings(size=2, support=2, rounds=1))
    label_coresets(federation, coresets)


def _classify(federation: Federation) -> None:
    """A classifier with heads of its own in every silo."""
    train_personal(federation, PersonalSettings("fedrep", rounds=1, participation=1.0, hidden=(4,), classes=2))


def _compose(federation: Federation) -> None:
    """Experts that train beside each other and teach a student; one flow for all; experts of an earlier run."""
    space = AttributeSpace.of({"side": ["left", "right"], "height": ["top", "bottom"]})
    experts = {"steps": 2, "batch": 8, "hidden": 4, "layers": 2, "embedding": 2}
    student = {"steps": 2, "batch": 8, "trajectories": 8, "path_steps": 2}
    first = train_composition(
        federation, "hybrid", 1, space, experts=experts, peers={"rounds": 1, "steps": 2}, student=student, force=True
    )
    train_composition(
        federation, "fedflow", 2, space, experts=experts, federated={"rounds": 1, "local_steps": 2}, force=True
    )
    train_composition(federation, "ddm", 3, space, first.experts, experts=experts, force=True)


def fresh(silo: Silo) -> Silo:
    """A copy that can be asked without changing the original; tensors are never changed in place."""
    found = copy.copy(silo)
    found.state, found.limits, found._last = dict(silo.state), dict(silo.limits), None
    found.cache = {name: copy.copy(value) for name, value in silo.cache.items()}
    found.gathered = dict(silo.gathered)
    return found
