"""The server half: trains one flow on many silos and never sees data."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import UsageError
from anabranch.federation import Federation, Following, ServerOptimizer
from anabranch.flow import MovingAverage
from anabranch.methods._phases import Phase, Phased, Progress
from anabranch.methods.ffm import _silo
from anabranch.methods.ffm._half import computes_in_half, flow_network, wants_half
from anabranch.methods.ffm._memory import spared_phase
from anabranch.methods.ffm._messages import Gradient, LocalSteps, Prepare
from anabranch.methods.ffm._passes import forget_pass
from anabranch.methods.ffm._potential import PotentialServer
from anabranch.methods.ffm._semidiscrete import SemiDiscreteServer
from anabranch.methods.ffm._settings import POTENTIAL_COUPLINGS, FlowMatching
from anabranch.methods.ffm._speed import tuned
from anabranch.methods.ffm._velocity import FlowVelocity

__all__ = ["FlowServer", "Phase", "Progress"]
LOG = logging.getLogger(__name__)
Metrics = dict[str, float | Tensor]
MOST_LEFT = 0.05  # share of points without a noise that is not worth a word
SILO_HALF = _silo  # importing the server half registers the silo half


class FlowServer(Phased):
    """Federated flow matching (FFM, Algorithms 1–5; SD).

    Iterating `run` trains; between rounds `state` is all that a later `load` needs to go on as if nothing had happened.
    It opens no file and knows no engine. `warnings` are sentences for whoever described the run.
    """

    def __init__(self, settings: FlowMatching, federation: Federation, source: Tensor | None = None) -> None:
        if not federation.weight:
            raise UsageError("The federation is not open yet; call federation.open(run, seed) first.")
        self.settings = settings
        self.federation = federation
        self.warnings = warnings_of(settings, federation)
        text = settings.to_json()
        with spared_phase(settings, "flow"):
            self._begin(settings, federation)
            federation.everyone({name: Prepare(text, federation.weight[name], source) for name in federation.names})
        self.phases = self._phases()
        self.failures: dict[str, str] = {}

    @property
    def parameters(self) -> dict[str, Tensor]:
        """θ as it stands."""
        return {name: p.detach() for name, p in self.optimizer.parameters.items()}

    def velocity(self, averaged: bool = True) -> FlowVelocity:
        """v(x, t) with the averaged parameters (or the last ones), for sampling."""
        self.following.settle()
        forget_pass()  # silos of this process hold the memory of a whole pass, which samples may need
        return FlowVelocity(self.network, self.settings, self.average.parameters if averaged else self.parameters)

    def _begin(self, settings: FlowMatching, federation: Federation) -> None:
        """Takes the memory that networks and their optimisers need."""
        flow, seed = settings.flow, federation.seed
        self.network = flow_network(settings, federation.dimension, seeds.derive(seed, "flow"), federation.device)
        self.network.eval()  # the server only samples: silos train, and drop out
        rule = ServerOptimizer(flow.optimizer, flow.rate, flow.schedule, flow.rounds, flow.warm_up, flow.clip)
        if flow.local_steps:
            rule = ServerOptimizer("sgd", 1.0)  # parameters are averaged: the pseudo-gradient is taken whole
        self.optimizer = rule.begin(dict(self.network.named_parameters()))
        self.average = MovingAverage(self.parameters, flow.average)
        self.potential: PotentialServer | None = None
        self.semidiscrete: SemiDiscreteServer | None = None
        if settings.coupling.name == "semidiscrete":
            self.semidiscrete = SemiDiscreteServer(settings.semidiscrete, federation)
        elif settings.coupling.name in POTENTIAL_COUPLINGS:
            self.potential = PotentialServer(settings, federation, seeds.derive(seed, "potential"))
        others = [self.potential.following] if self.potential is not None else []
        self.following = Following(
            federation, self.optimizer, then=lambda: self.average.update(self.parameters), others=others
        )

    def spend(self, share: float) -> None:
        """Says that so much of the flow's training is over by the clock: a falling rate is to end with it."""
        self.optimizer.spent = share

    @staticmethod
    def velocity_of(
        settings: FlowMatching,
        dimension: int,
        state: dict[str, Tensor],
        device: torch.device | str = "cpu",
        exact: bool = False,
    ) -> FlowVelocity:
        """v(x, t) of a checkpoint's averaged parameters, computed there; needs neither silos nor data. `exact`: see
        `FlowVelocity`."""
        empty = flow_network(settings, dimension, device=device).eval()
        average = MovingAverage({name: p.detach() for name, p in empty.named_parameters()}, settings.flow.average)
        average.load({n.removeprefix("average/"): t for n, t in state.items() if n.startswith("average/")})
        return FlowVelocity(empty, settings, average.parameters, exact)

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint of the server must hold."""
        self.following.settle()
        state = self.optimizer.state("flow")
        state.update({f"average/{name}": tensor for name, tensor in self.average.state().items()})
        if self.potential is not None:
            state.update(self.potential.state())
        if self.semidiscrete is not None:
            state["semidiscrete/scale"] = torch.tensor(self.semidiscrete.scale, dtype=torch.float64)
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        """Continues from a checkpoint, to the bit."""
        self.following.forget()
        self.optimizer.load("flow", state)
        self.average.load({n.removeprefix("average/"): t for n, t in state.items() if n.startswith("average/")})
        if self.potential is not None:
            self.potential.load(state)
            if self.optimizer.steps:
                self.potential.share()  # to a silo that was away when it was handed out, and where none is to come
        if self.semidiscrete is not None:
            self.semidiscrete.scale = float(state["semidiscrete/scale"])

    def _phases(self) -> list[Phase]:
        phases: list[Phase] = []
        if self.potential is not None and self.settings.potential.before:
            phases.append(self._phase("potential", self.settings.potential.before, self._improve_potential))
        if self.semidiscrete is not None:
            phases.append(self._phase("duals", self.settings.semidiscrete.rounds, self.semidiscrete.fit))
            phases.append(self._phase("assign", self.semidiscrete.blocks, self._assign))
        return [*phases, self._phase("flow", self.settings.flow.rounds, self._train)]

    def _phase(self, name: str, rounds: int, step: Callable[[int], Metrics]) -> Phase:
        """A phase whose rounds are computed as fast as the device can, and say what to lower if memory runs out."""

        def guarded(number: int) -> Metrics:
            with tuned(self.settings, self.federation.device), spared_phase(self.settings, name):
                return step(number)

        return Phase(name, rounds, guarded)

    def _improve_potential(self, number: int) -> Metrics:
        assert self.potential is not None
        metrics = self.potential.update()
        self.failures = self.potential.failures
        if number == self.settings.potential.before and not self.settings.potential.every:
            self.potential.share()
        return metrics

    def _assign(self, number: int) -> Metrics:
        assert self.semidiscrete is not None
        metrics = self.semidiscrete.assign(number)
        if number == self.semidiscrete.blocks:
            self.semidiscrete.settle()
        return metrics

    def _train(self, number: int) -> Metrics:
        last = number == self.settings.flow.rounds
        ahead = () if last else self.federation.chosen(ahead=1)
        mean = self.following.take(self._question, self.federation.chosen(), ahead)
        if last:
            self.following.settle()
        self.failures = self.following.failures
        metrics: Metrics = {"answered": 0}
        if mean is not None:
            metrics = {"loss": mean.reply.loss, "answered": len(mean.answered)}
        every = self.settings.potential.every
        if self.potential is not None and every and number % every == 0:
            update = self.potential.update()
            metrics |= {name: value for name, value in update.items() if name == "semidual"}
            if last:
                self.potential.following.settle()
            self.failures = self.failures | self.potential.failures
        return metrics

    def _question(self) -> Gradient | LocalSteps:
        flow, potential = self.settings.flow, {}
        if self.potential is not None and self.settings.potential.every:
            potential = self.potential.travelling()
        if flow.local_steps:
            return LocalSteps(self.parameters, potential, flow.local_steps, flow.local_rate)
        return Gradient(self.parameters, potential)


def warnings_of(settings: FlowMatching, federation: Federation) -> list[str]:
    """What will not be as the settings say, also said in the log."""
    found: list[str] = []
    here = hasattr(federation.engine, "device")  # silos that are elsewhere compute where we do not know
    if here and wants_half(settings) and not computes_in_half(settings, federation.device):
        found.append(
            f"flow.precision is 'bfloat16', which this {'GPU' if federation.device.type == 'cuda' else 'CPU'} does not"
            " compute networks of images with; they are computed in float32, in more time and memory."
        )
    if here and settings.coupling.name == "semidiscrete" and settings.coupling.group <= 1:  # sites group points
        noises, points = settings.semidiscrete.noises, sum(federation.sizes.values())
        # A silo's points share its weight λ alike, and noises fall on them by chance.
        each = {name: noises * federation.weight[name] / max(1, size) for name, size in federation.sizes.items()}
        left = sum(size * math.exp(-each[name]) for name, size in federation.sizes.items()) / max(1, points)
        if left > MOST_LEFT:
            found.append(
                f"semidiscrete.noises is {noises}, and silos hold {points} points, mirror images counted where they are"
                f" such: about {left:.0%} of these will have no noise, and are never trained on, unless their silo"
                " answers for groups of them. Ten for each point leave hardly any out."
            )
    for sentence in found:
        LOG.info(sentence)
    return found
