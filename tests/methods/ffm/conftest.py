"""A small laboratory: silos of a few dozen points, settings of a few rounds."""

import pytest
import torch

from anabranch.data import Points, shape
from anabranch.federation import Federation, Silo
from anabranch.methods.ffm import (
    CouplingSettings,
    FlowMatching,
    FlowServer,
    FlowSettings,
    PotentialSettings,
    SemiDiscreteSettings,
)
from anabranch.seeds import derive, generator

COUPLINGS = {
    "independent": {"name": "independent"},
    "minibatch": {"name": "minibatch"},
    "sinkhorn": {"name": "minibatch", "solver": "sinkhorn"},
    "potential": {"name": "potential", "candidates": 40},
    "potential by descent": {"name": "potential", "candidates": 40, "transform": "descent"},
    "entropic": {"name": "entropic", "candidates": 40},
    "balanced": {"name": "balanced"},
    "semidiscrete": {"name": "semidiscrete"},
    "semidiscrete in groups": {"name": "semidiscrete", "group": 5},
}


class Lab:
    """Everything is small and seeded; whatever matters to a test can be given."""

    couplings = COUPLINGS

    @staticmethod
    def silos(sizes=(60, 30, 45), folder=None, order=1, **options):
        """Silos a, b, c, … of unequal size, each a Gaussian at a place of its own."""
        made = []
        for number, size in enumerate(sizes):
            name = "abcdefgh"[number]
            x = torch.randn(size, 2, generator=generator(number, "silo data")) * 0.6
            x = x + 3 * torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])[number % 3]
            place = folder / name if folder is not None else None
            made.append(Silo(name, x, secret=derive(7, name), folder=place, **options))
        return made[::order]

    @staticmethod
    def settings(coupling="independent", every=0, semidiscrete=None, potential=None, **flow):
        options = COUPLINGS[coupling] if isinstance(coupling, str) else coupling
        return FlowMatching(
            FlowSettings(**{"hidden": 16, "layers": 2, "rounds": 4, "batch": 24, **flow}),
            CouplingSettings(**options),
            PotentialSettings(
                **{"hidden": 16, "layers": 2, "before": 3, "batch": 24, "every": every, **(potential or {})}
            ),
            SemiDiscreteSettings(
                **{"rounds": 5, "count": 128, "noises": 600, "block": 200, "local_rounds": 10, **(semidiscrete or {})}
            ),
        )

    @staticmethod
    def server(settings, silos, seed=5, run="run", **options):
        federation = Federation(silos, **options)
        federation.open(run, seed)
        return FlowServer(settings, federation)

    @staticmethod
    def train(server, done=0, until=None):
        """Runs to the end, or until that round has been finished."""
        progress = None
        for progress in server.run(done):
            if progress.round == until:
                break
        return progress

    @classmethod
    def ready(cls, settings, silos, **options):
        """A server whose silos are prepared for training: every phase before the flow is over."""
        server = cls.server(settings, silos, **options)
        for phase in server.phases[:-1]:
            for number in range(1, phase.rounds + 1):
                server.federation.start_round(server.federation.round + 1)
                phase.step(number)
        server.federation.start_round(1000)
        return server

    @staticmethod
    def moons(count=300):
        """Two silos with a moon each."""
        points = shape("moons").sample(4 * count, generator(0, "moons"))
        parts = [points[points.label == label][:count] for label in (0, 1)]
        return [Silo(name, Points(p.x, p.label).x, secret=derive(1, name)) for name, p in zip("ab", parts, strict=True)]


@pytest.fixture(scope="session")
def lab():
    return Lab
