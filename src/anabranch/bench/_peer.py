"""The same training step with torchcfm's classes, as their users write it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import shape
from anabranch.errors import AnabranchError
from anabranch.flow import MovingAverage
from anabranch.methods.ffm import FlowSettings


def require_torchcfm() -> ModuleType:
    """The module torchcfm, or a sentence on how to get it."""
    try:
        import torchcfm
        import torchcfm.models
        import torchcfm.optimal_transport
    except ImportError as error:
        raise AnabranchError(
            f"torchcfm cannot be imported ({error}), so that there is nothing to compare with; pip install"
            ' "anabranch[bench]".'
        ) from error
    module: ModuleType = torchcfm
    return module


def missing() -> str:
    """Why there is no peer; empty where there is one."""
    try:
        require_torchcfm()
    except AnabranchError as error:
        return str(error)
    return ""


class Peer:
    """One network, trained silo after silo: a pass for each silo, its loss weighted by λ, then one optimiser step.

    Only what torchcfm offers comes from torchcfm: pairs, path and network. Source points, the fused Adam and the
    moving average are those of our own step, so that they make no difference. Gradients add up where they are, which
    is the least that a loop over silos can do.
    """

    def __init__(self, points: Mapping[str, Tensor], method: str, settings: FlowSettings) -> None:
        module = require_torchcfm()
        matchers = {
            "vanilla": module.ConditionalFlowMatcher,
            "lot": module.ExactOptimalTransportConditionalFlowMatcher,
        }
        self.matcher = matchers[method](sigma=settings.sigma)
        self.points = list(points.values())
        total = sum(map(len, self.points))
        self.weights = [len(x) / total for x in self.points]
        dimension = self.points[0].shape[1]
        self.batch = settings.batch
        self.source = shape(settings.source, dimension)
        self.network = module.models.MLP(dim=dimension, w=settings.hidden, time_varying=True)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.rate, fused=True)
        self.average = MovingAverage(dict(self.network.named_parameters()), settings.average)
        self.generator = seeds.generator(0, "peer")

    def step(self) -> None:
        """One round over all silos."""
        self.optimizer.zero_grad()
        for weight, x in zip(self.weights, self.points, strict=True):
            x0 = self.source.points(self.batch, self.generator)
            x1 = x[torch.randint(len(x), (self.batch,), generator=self.generator)]
            t, x_t, u_t = self.matcher.sample_location_and_conditional_flow(x0, x1)
            v_t = self.network(torch.cat([x_t, t[:, None]], dim=-1))
            loss = weight * torch.mean((v_t - u_t) ** 2)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.average.update(dict(self.network.named_parameters()))

    def sample(self, x0: Tensor, evaluations: int) -> Tensor:
        """Euler steps in a plain loop."""
        x, h = x0, 1 / evaluations
        with torch.no_grad():
            for number in range(evaluations):
                t = torch.full((len(x), 1), number * h)
                x = x + h * self.network(torch.cat([x, t], dim=-1))
        return x
