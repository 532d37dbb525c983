"""Small runs, and what they end with on the local engine; a federation that stands still."""

import pytest
import torch

from anabranch.engines.nvflare._kits import provision
from anabranch.recipes import recipe
from anabranch.runs import RunFolder, train
from tests.engines.two_sites import SITES, free_ports

SMALL = (
    "rounds=20",
    "data.points=200",
    "precision=float64",
    "federation.fused=false",
    "federation.patience=30",
    "potential.before=6",
    "semidiscrete.rounds=8",
    "semidiscrete.noises=3000",
    "semidiscrete.block=2000",
    "evaluation.nfe=[1]",
    "evaluation.points=64",
    "evaluation.dopri5=false",
    "run.threads=1",
    "run.log_every=1",
)


class Bench:
    """Configs of twenty rounds, and the parameters that a run folder ends with."""

    @staticmethod
    def config(method, *changes):
        return recipe("ffm-2d").config("8gaussians-moons", method, "small", 0, [*SMALL, *changes])

    @staticmethod
    def parameters(path):
        checkpoint, _ = RunFolder(path).load_checkpoint()
        return {name: tensor for name, tensor in checkpoint.state.items() if name.startswith("flow/value/")}

    @classmethod
    def local(cls, config, path):
        before = torch.get_num_threads()
        try:
            train(config, path)
        finally:
            torch.set_num_threads(before)
        return cls.parameters(path)


@pytest.fixture(scope="session")
def bench():
    return Bench


@pytest.fixture(scope="session")
def kits(tmp_path_factory):
    """A federation that nobody has started, and no test changes."""
    return provision(tmp_path_factory.mktemp("plain") / "federation", SITES, **free_ports())
