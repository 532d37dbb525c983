"""DCFM, Tables 3 and 4: what a method sends, in units of one model, and what a step computes, in units of one batch.

Nothing here is about quality: runs are a few steps long, and everything is counted while they run, bytes by the ledger
and passes by the code that makes them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from anabranch import seeds
from anabranch.data.attributes import AttributeSpace
from anabranch.federation import Silo
from anabranch.methods.dcfm import ComposedFlow, Composition, composition, train_composition
from anabranch.methods.experts import expert_network
from anabranch.recipes._recipe import recipe
from anabranch.recipes._study import Lines, StudyCell, beside
from anabranch.recipes.studies import _composition_cost_pictures as pictures
from anabranch.runs import Row

SECTIONS = ("experts", "federated", "peers", "student", "mixture", "every")
PASSES = ("forward", "backward")
COMMUNICATION = 3  # the table that is about it; the other is about passes
EXPERT = "experts.expert"  # the kind of message that carries one


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell."""
    options = cell.options
    silos = cube(options["k"], options["silos"], options["count"], cell.seed)
    sections = {name: options[name] for name in SECTIONS if name in options}
    settings = composition(options["preset"], **sections)
    flow = train_composition(silos, settings, cell.seed)
    figures = communication(flow, settings) if options["table"] == COMMUNICATION else passes(flow)
    return [_row(cell, metric, value) for metric, value in figures.items()]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Communication against the number of silos, and passes of a step."""
    return pictures.draw(rows, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Table 3 and Table 4, the paper's figures beside ours."""
    published = recipe("dcfm-cost").published
    parts = {
        "Communication of a silo in units of θ (Table 3)": [r for r in rows if r["problem"].startswith("silos")],
        "Passes of a batch in a step (Table 4)": [r for r in rows if r["problem"].startswith("k")],
    }
    chosen = {title: [row for row in part if row["metric"] != "theta_error"] for title, part in parts.items()}
    return [(title, beside(part, published)) for title, part in chosen.items() if part]


def cube(k: int, silos: int, count: int, seed: int) -> list[Silo]:
    """Silos that hold `count` points each, near all corners of a cube in ℝ^k but one: k attributes, two outcomes."""
    space = AttributeSpace.of({f"side-{i + 1}": ["low", "high"] for i in range(k)})
    generator = seeds.generator(seed, "cube", k, silos)
    found = []
    for number in range(silos):
        label = torch.arange(count) % (len(space) - 1)
        x = 2.0 * space.decode(label) - 1 + 0.2 * torch.randn(count, k, generator=generator)
        found.append(Silo(f"silo-{number + 1}", x, label, space=space))
    return found


def communication(flow: ComposedFlow, settings: Composition) -> dict[str, float]:
    """Bytes of a silo over those of one model θ: all that it sent and received, as a mean over silos.

    DDM and DFD stop when every expert has been sent once, to whoever samples. A silo that samples would receive the
    experts of all others: `theta_units_sampling`, of those messages as they were sent.
    """
    network = expert_network(settings.experts, flow.dimension, flow.coverage.space.sizes)
    model = sum(p.numel() * p.element_size() for p in network.parameters())
    silos = list(flow.coverage.counts) if flow.experts else sorted({entry.silo for entry in flow.ledger.entries()})
    units = flow.ledger.bytes() / len(silos) / model
    found = {"theta_units": units, "theta_error": abs(units / expected_units(settings, len(silos)) - 1)}
    shared = {e.silo: e.bytes for e in flow.ledger.entries() if e.kind == EXPERT and e.direction == "up"}
    if shared and not settings.peers.rounds and not settings.student.steps:
        found["theta_units_sampling"] = max(sum(shared.values()) - own for own in shared.values()) / model
    return found


def expected_units(settings: Composition, silos: int) -> float:
    """What the protocol should take, messages without parameters left out.

    FedFlow 2T: down and up again in every round. DDM and DFD 1: an expert goes up. DCFM-B 2: besides, the student comes
    down. DCFM-A (R + 1)N: in every round a silo's expert goes up and those of N − 1 peers come down, and so once before
    the first, for a silo cannot train beside peers that it does not have; the paper's RN leaves that exchange out.
    """
    if settings.federated.rounds:
        return 2.0 * settings.federated.rounds
    rounds = settings.peers.rounds
    return float((rounds + 1) * silos if rounds else 1) + (1 if settings.student.steps else 0)


def passes(flow: ComposedFlow) -> dict[str, float]:
    """Passes of a batch that a step takes, in the last phase that trains a flow; means over its rounds."""
    counted = [progress for progress in flow.history if set(PASSES) <= progress.metrics.keys()]
    last = [progress.metrics for progress in counted if progress.phase == counted[-1].phase]
    return {name: sum(float(metrics[name]) for metrics in last) / len(last) for name in PASSES}


def _row(cell: StudyCell, metric: str, value: float) -> Row:
    key = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None}
    return {**key, "metric": metric, "value": float(value)}
