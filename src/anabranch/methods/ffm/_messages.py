"""Everything that federated flow matching sends. This page is its whole privacy surface."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import Message, same_shapes


@dataclass(frozen=True)
class Prepare(Message, kind="ffm.prepare"):
    """Tells a silo the settings, its weight λ and, where the source is a set of points, those points.

    Reveals: nothing of the data.
    """

    settings: str
    weight: float
    source: Tensor | None = None


@dataclass(frozen=True)
class Gradient(Message, kind="ffm.gradient"):
    """Asks for the gradient of the flow-matching loss at θ on one batch; carries φ while the potential still changes.

    Reveals: nothing of the data beyond what θ and φ have learned from all silos.
    """

    parameters: dict[str, Tensor]
    potential: dict[str, Tensor]


@dataclass(frozen=True)
class GradientReply(Message, kind="ffm.gradient.reply"):
    """∇_θ of the loss on one batch, and the loss.

    Reveals: a gradient. Without clipping and noise, gradients of small batches can be inverted to their samples; the
    aggregate of many silos is what the server needs, and all it is given where an engine sums securely. Of a flow that
    is told classes it also shows which of them the batch has `smallest_group` times or more: only their rows of the
    network's table are not zero, and each is of the points of that class alone.
    """

    gradients: dict[str, Tensor]
    loss: Tensor

    def validate(self, question: Message) -> None:
        """Names and shapes are those of the parameters; the loss is one number."""
        _check_number(self.kind, "loss", self.loss)
        if isinstance(question, Gradient | LocalSteps):
            same_shapes(self.kind, self.gradients, question.parameters)


@dataclass(frozen=True)
class LocalSteps(Message, kind="ffm.local"):
    """Asks for what E optimiser steps on the silo's own batches do to θ (FedAvg); moments start at zero.

    Reveals: nothing of the data beyond what θ and φ have learned from all silos.
    """

    parameters: dict[str, Tensor]
    potential: dict[str, Tensor]
    steps: int
    rate: float


@dataclass(frozen=True)
class PotentialGradient(Message, kind="ffm.potential"):
    """Asks for the gradient of the semi-dual objective at φ on one batch (FFM, Algorithm 4).

    Reveals: nothing of the data beyond what φ has learned from all silos.
    """

    potential: dict[str, Tensor]


@dataclass(frozen=True)
class PotentialGradientReply(Message, kind="ffm.potential.reply"):
    """∇_φ of mean f(x0) + mean f^c(x1), to be ascended, and the value.

    Reveals: a gradient of a potential on the source space; as with `GradientReply`, clip, add noise or sum securely.
    """

    gradients: dict[str, Tensor]
    value: Tensor

    def validate(self, question: Message) -> None:
        """Names and shapes are those of the potential; the value is one number."""
        _check_number(self.kind, "value", self.value)
        if isinstance(question, PotentialGradient):
            same_shapes(self.kind, self.gradients, question.potential)


@dataclass(frozen=True)
class SharePotential(Message, kind="ffm.share"):
    """Gives a silo the finished potential, once, so that no later question needs to carry it.

    Reveals: nothing of the data beyond what φ has learned from all silos.
    """

    potential: dict[str, Tensor]


@dataclass(frozen=True)
class Lookup(Message, kind="ffm.lookup"):
    """Asks, for `count` noises x0, for the one number min_j c(x0, x_j) − g_j over the silo's own atoms.

    The noises follow from `numbers`, one from every silo, and from the block: a silo refuses numbers that lack its
    own, so that nobody, the server included, chooses x0 alone. `settled` asks with the averaged duals that fitting
    ended with.

    Reveals: nothing of the data.
    """

    numbers: Tensor
    purpose: str
    block: int
    count: int
    settled: bool

    def answers(self) -> int:
        """Every noise is an answer of its own."""
        return self.count


@dataclass(frozen=True)
class Scores(Message, kind="ffm.lookup.reply"):
    """For each noise, min_j ½‖x0 − x_j‖² − g_j.

    Reveals: much, when bare. Inside one cell the answer less ½‖x0‖² is the affine function −x0·x_j + const, so d + 1
    answers in one cell determine the atom x_j exactly. Bare atoms are raw points. Protected atoms are means of groups
    of at least `coupling.group` points, which is then all that any number of answers can reveal; noise on the answers
    (a postprocessor) and a limit on their number (the silo's) blur even those.
    """

    values: Tensor

    def validate(self, question: Message) -> None:
        """One number a noise."""
        if isinstance(question, Lookup) and (
            self.values.shape != (question.count,) or self.values.dtype != torch.float32
        ):
            raise MessageError(f"{tuple(self.values.shape)} scores arrived for {question.count} noises.")


@dataclass(frozen=True)
class Award(Message, kind="ffm.award"):
    """Tells a silo which of the looked-up noises it won, and nothing about the others.

    While fitting, `step` > 0 moves its duals towards its due share, and `average` lets them enter the average.
    Afterwards `store` keeps the noises won as training pairs.

    Reveals: where other silos' points are not: the winner's region of the source, seen from each silo.
    """

    won: Tensor
    purpose: str
    block: int
    step: float
    average: bool
    store: bool


@dataclass(frozen=True)
class Awarded(Message, kind="ffm.award.reply"):
    """Two sums over the silo's atoms: Σ ν_j g_j, for the dual value, and the unbiased χ² of its usage, for convergence.

    Reveals: the two sums, from which no single atom can be told.
    """

    dual: float
    chi_square: float


@dataclass(frozen=True)
class Settle(Message, kind="ffm.settle"):
    """Asks the silo to finish: with grouped atoms it now fits its own points' duals to the noises it won, locally.

    Reveals: nothing of the data.
    """

    numbers: Tensor
    noises: int
    block: int


@dataclass(frozen=True)
class Histograms(Message, kind="ffm.histograms"):
    """Asks how many held-out points fall between the edges, along each direction.

    Reveals: nothing of the data beyond what the edges, quantiles of model samples, have learned from all silos.
    """

    directions: Tensor
    edges: Tensor


@dataclass(frozen=True)
class HistogramsReply(Message, kind="ffm.histograms.reply"):
    """Counts of the silo's held-out points, per direction and bin.

    Reveals: one-dimensional histograms of the held-out points. Asked often, with edges of the server's choice, they
    locate single points; a silo limits how often it answers.
    """

    counts: Tensor

    def validate(self, question: Message) -> None:
        """One row a direction, one bin more than edges, and points in every row."""
        if isinstance(question, Histograms):
            wanted = (question.edges.shape[0], question.edges.shape[1] + 1)
            if tuple(self.counts.shape) != wanted or self.counts.dtype != torch.int64:
                raise MessageError(f"Counts of shape {tuple(self.counts.shape)} arrived; {wanted} were expected.")
            if not bool((self.counts.sum(1) > 0).all()):
                raise MessageError("Counts arrived that hold no points.")


def _check_number(kind: str, name: str, value: Tensor) -> None:
    if value.shape != () or not value.is_floating_point():
        raise MessageError(
            f"'{kind}' arrived with {name} as {value.dtype} {tuple(value.shape)}; a number was expected."
        )
