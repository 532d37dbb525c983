"""The potential's exchange: both halves of FFM's Algorithm 4, with the sign that makes it a maximum."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from anabranch.coupling import potential_duals
from anabranch.errors import RefusedError
from anabranch.federation import Done, Federation, Following, ServerOptimizer, Silo, answers, answers_together
from anabranch.methods.ffm._draws import threads
from anabranch.methods.ffm._half import (
    FlowHalf,
    gradients,
    half_of,
    load_parameters,
    potential_coupling,
    potential_network,
)
from anabranch.methods.ffm._messages import PotentialGradient, PotentialGradientReply, SharePotential
from anabranch.methods.ffm._settings import FlowMatching
from anabranch.methods.ffm._shares import spread


class PotentialServer:
    """The server half: owns φ and its optimiser."""

    def __init__(self, settings: FlowMatching, federation: Federation, seed: int) -> None:
        network = potential_network(settings, federation.dimension, seed, federation.device)
        if network is None:
            raise ValueError(f"the coupling '{settings.coupling.name}' has no potential")
        options = settings.potential
        updates = options.before + (-(-settings.flow.rounds // options.every) if options.every else 0)
        self.federation = federation
        rule = ServerOptimizer("adam", options.rate, options.schedule, rounds=updates)
        self.optimizer = rule.begin(dict(network.named_parameters()))
        self.following = Following(federation, self.optimizer, sign=-1)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """φ as it stands."""
        return {name: p.detach() for name, p in self.optimizer.parameters.items()}

    @property
    def failures(self) -> dict[str, str]:
        """Who was left out of the last step, and why."""
        return self.following.failures

    def travelling(self) -> dict[str, Tensor]:
        """φ for a question that may be asked again once φ has moved on: a copy, where that can be."""
        late = self.following.late
        return {name: tensor.clone() if late else tensor for name, tensor in self.parameters.items()}

    def update(self) -> dict[str, float | Tensor]:
        """One ascent step on the λ-weighted semi-dual (FFM, eq. 9); none, where no silo's answer can be used."""
        mean = self.following.take(PotentialGradient(self.parameters), self.federation.chosen())
        if mean is None:
            return {"answered": 0}
        return {"semidual": mean.reply.value, "answered": len(mean.answered)}

    def share(self) -> None:
        """Hands the finished potential to every silo."""
        self.following.settle()
        self.federation.everyone(SharePotential(self.parameters))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of it."""
        self.following.settle()
        return self.optimizer.state("potential")

    def load(self, state: dict[str, Tensor]) -> None:
        """Goes on from a checkpoint."""
        self.following.forget()
        self.optimizer.load("potential", state)


def _ready(silo: Silo, question: PotentialGradient) -> tuple[FlowHalf, nn.Module]:
    half = half_of(silo)
    if half.potential is None:
        raise RefusedError(f"The coupling '{half.settings.coupling.name}' has no potential to improve.")
    load_parameters(half.potential, question.potential)
    silo.rests_on(min(half.settings.potential.batch, len(silo)))
    return half, half.potential


def _duals(silos: Sequence[Silo], halves: Sequence[FlowHalf], potential: nn.Module) -> Tensor:
    """Every silo's part of the semi-dual, with its own random numbers, all through one module."""
    first = halves[0]
    return potential_duals(
        [potential_coupling(half.settings, half.weight, potential) for half in halves],
        [half.data for half in halves],
        first.source,
        first.settings.potential.batch,
        [silo.generator("potential", device=half.device) for silo, half in zip(silos, halves, strict=True)],
        silos[0].shared_generator("potential"),
        threads(len(silos), first.device),
    )


@answers(PotentialGradient)
def potential_gradient(silo: Silo, question: PotentialGradient) -> PotentialGradientReply:
    """∇_φ of the silo's part of the semi-dual on one batch."""
    half, potential = _ready(silo, question)
    value = _duals([silo], [half], potential)[0]
    return PotentialGradientReply(gradients(value, potential), value.detach())


@answers_together(PotentialGradient)
def potential_gradient_together(
    silos: Sequence[Silo], question: PotentialGradient, weights: Tensor
) -> PotentialGradientReply:
    """The same for many silos, in one descent and one backward pass."""
    halves = [_ready(silo, question) for silo in silos]
    potential = halves[0][1]
    values = _duals(silos, [half for half, _ in halves], potential)
    value = (values * spread(weights, 1, values)).sum()
    return PotentialGradientReply(gradients(value, potential), value.detach())


@answers(SharePotential)
def share_potential(silo: Silo, question: SharePotential) -> Done:
    """Keeps the finished potential as the silo's own state."""
    half = half_of(silo)
    if half.potential is None:
        raise RefusedError(f"The coupling '{half.settings.coupling.name}' has no potential to keep.")
    kept = {name: tensor.clone() for name, tensor in question.potential.items()}
    load_parameters(half.potential, kept)
    silo.state.update({f"potential/{name}": tensor for name, tensor in kept.items()})
    return Done()
