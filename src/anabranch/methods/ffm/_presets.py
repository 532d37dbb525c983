"""The methods by name: which settings make vanilla, LOT, GOT, … and training in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from anabranch import seeds
from anabranch.data import shape
from anabranch.errors import unknown
from anabranch.federation import Federation, Ledger, Silo
from anabranch.flow import integrate
from anabranch.methods.ffm._server import FlowServer
from anabranch.methods.ffm._settings import (
    CouplingSettings,
    FlowMatching,
    FlowSettings,
    PotentialSettings,
    SemiDiscreteSettings,
)
from anabranch.methods.ffm._velocity import FlowVelocity

PRESETS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "vanilla": {"coupling": {"name": "independent"}},
    "lot": {"coupling": {"name": "minibatch"}},
    # As printed: a potential trained beside the flow, every fifth step, at a constant rate of 1e-4.
    "got": {
        "coupling": {"name": "potential"},
        "potential": {"before": 0, "every": 5, "rate": 1e-4, "schedule": "constant"},
    },
    "got-entropic": {"coupling": {"name": "entropic"}},
    # Half a batch moves the potential as well as a whole one (W2 equal to 0.002) and its assignments take a fifth.
    "got-balanced": {"coupling": {"name": "balanced"}, "potential": {"batch": 128}},
    "sd": {"coupling": {"name": "semidiscrete"}},
    # Answers rest on groups of twenty points or more; noise and limits are added by the federation.
    "sd-protected": {"coupling": {"name": "semidiscrete", "group": 20}, "semidiscrete": {"rounds": 1000}},
}


@dataclass(frozen=True)
class TrainedFlow:
    """A finished flow: its velocity, the source it starts from, and what its training sent."""

    velocity: FlowVelocity = field(repr=False)
    source: str
    dimension: int
    ledger: Ledger = field(repr=False)

    def sample(
        self,
        count: int,
        nfe: int = 10,
        solver: str = "euler",
        seed: int = 0,
        label: int | None = None,
        weight: float = 1.0,
    ) -> Tensor:
        """`count` samples with `nfe` function evaluations; of the class `label`, where the flow is told classes,
        sharpened by a `weight` above one."""
        x0 = shape(self.source, self.dimension).points(count, seeds.generator(seed, "sample"))
        velocity = self.velocity.of_class(label, weight)
        return integrate(velocity, x0, nfe, solver).x1


def train_flow(
    silos: Sequence[Silo] | Federation,
    method: str | FlowMatching = "sd-protected",
    rounds: int = 2000,
    batch: int = 256,
    source: str = "gaussian",
    seed: int = 0,
) -> TrainedFlow:
    """Trains one flow on the silos and returns it: the shortest way in. `method` is a preset's name, or settings.

    >>> from anabranch.federation import Silo
    >>> moons = shape("moons").sample(200, seeds.generator(0, "data"))
    >>> silos = [Silo(name, moons.x[moons.label == number]) for number, name in enumerate(["upper", "lower"])]
    >>> train_flow(silos, "lot", rounds=3, batch=16).sample(5, nfe=2).shape
    torch.Size([5, 2])
    """
    federation = silos if isinstance(silos, Federation) else Federation(silos)
    settings = method if isinstance(method, FlowMatching) else preset(method)
    settings = replace(settings, flow=replace(settings.flow, rounds=rounds, batch=batch, source=source))
    federation.open(f"train_flow/{seed}/{seeds.derive(seed, settings.to_json())}", seed)
    server = FlowServer(settings, federation)
    for _ in server.run():
        pass
    return TrainedFlow(server.velocity(), source, federation.dimension, federation.ledger)


def preset(method: str) -> FlowMatching:
    """The settings of a method by its name."""
    if method not in PRESETS:
        raise unknown("method", method, PRESETS)
    sections = PRESETS[method]
    return FlowMatching(
        FlowSettings(**sections.get("flow", {})),
        CouplingSettings(**sections.get("coupling", {})),
        PotentialSettings(**sections.get("potential", {})),
        SemiDiscreteSettings(**sections.get("semidiscrete", {})),
    )
