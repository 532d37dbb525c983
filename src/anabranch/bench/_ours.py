"""A training step as the package takes it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from anabranch.federation import Federation, Silo
from anabranch.flow import integrate
from anabranch.methods.ffm import CouplingSettings, FlowMatching, FlowServer, FlowSettings

COUPLING = {"vanilla": "independent", "lot": "minibatch"}


class Ours:
    """A server and its silos in one process, with everything that a run has: messages, ledger, checks, averages."""

    def __init__(self, points: Mapping[str, Tensor], method: str, settings: FlowSettings) -> None:
        federation = Federation([Silo(name, x, secret=number) for number, (name, x) in enumerate(points.items())])
        federation.open("bench", seed=0)
        self.server = FlowServer(FlowMatching(settings, CouplingSettings(COUPLING[method])), federation)
        self.rounds = self.server.run()

    def step(self) -> None:
        """One round."""
        next(self.rounds)

    def sample(self, x0: Tensor, evaluations: int) -> Tensor:
        """Euler steps with the averaged parameters."""
        return integrate(self.server.velocity(), x0, evaluations).x1
