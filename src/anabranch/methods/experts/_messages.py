"""Everything that training experts sends. This page is their whole privacy surface."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import MessageError
from anabranch.federation import Message, same_shapes


@dataclass(frozen=True)
class Survey(Message, kind="experts.survey"):
    """Asks which combinations of attributes a silo holds. `space` is the attribute space as JSON, or empty.

    Reveals: nothing of the data.
    """

    space: str


@dataclass(frozen=True)
class SurveyReply(Message, kind="experts.survey.reply"):
    """The silo's own attributes and outcomes, and how many samples it has of each combination (|Y|,); where samples are
    images, their `shape` (3,): colours, height, width.

    Reveals: these counts, exactly; those below the silo's `smallest_group` are given as 0. No sample.
    """

    space: str
    counts: Tensor
    shape: Tensor | None = None

    def validate(self, question: Message) -> None:
        """One count for each combination of a space that can be."""
        space = AttributeSpace.from_json(self.space)
        if self.counts.dtype != torch.int64 or self.counts.shape != (len(space),):
            raise MessageError(f"'{self.kind}' arrived with counts that do not fit its {len(space)} combinations.")
        if bool((self.counts < 0).any()) or bool((self.counts >= 2**53).any()):
            raise MessageError(f"'{self.kind}' arrived with counts that cannot be.")
        sides = self.shape
        if sides is not None and (sides.dtype != torch.int64 or sides.shape != (3,) or bool((sides < 1).any())):
            raise MessageError(f"'{self.kind}' arrived with a shape that no image has.")


@dataclass(frozen=True)
class Prepare(Message, kind="experts.prepare"):
    """Tells a silo the settings and the attribute space that all agreed on, both as JSON.

    Reveals: which attributes and outcomes there are in all silos together.
    """

    settings: str
    space: str


@dataclass(frozen=True)
class Train(Message, kind="experts.train"):
    """Asks a silo to train its own expert for `steps`, of which `done` came before; `of` is how many there will be.

    Reveals: nothing of the data.
    """

    steps: int
    done: int
    of: int


@dataclass(frozen=True)
class TrainReply(Message, kind="experts.train.reply"):
    """Mean losses over these steps, and what they cost: rows evaluated, and rows differentiated.

    Reveals: how well the silo's own expert fits its samples, as two numbers.
    """

    matching: float
    independence: float
    forward: float
    backward: float


@dataclass(frozen=True)
class Share(Message, kind="experts.share"):
    """Asks a silo for its expert.

    Reveals: nothing of the data.
    """


@dataclass(frozen=True)
class Expert(Message, kind="experts.expert"):
    """A silo's expert: the averaged parameters of its flow; and, where it was just trained, mean losses and passes.

    Reveals: a generative model of the silo's samples. Whoever holds it can sample what looks like them, and where the
    expert has memorised, the samples themselves: train on enough data, and check for memorised samples before sharing.
    """

    parameters: dict[str, Tensor]
    matching: float = 0.0
    independence: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True)
class Restore(Message, kind="experts.restore"):
    """Gives a silo back the expert that it shared in an earlier run, so that another method can start from it.

    Reveals: nothing that the silo has not shared before.
    """

    parameters: dict[str, Tensor]


@dataclass(frozen=True)
class LocalSteps(Message, kind="experts.local"):
    """FedFlow: asks a silo to train for `steps` from these shared parameters at this `rate`.

    Reveals: nothing of the data beyond what the shared parameters have learned from all silos.
    """

    parameters: dict[str, Tensor]
    steps: int
    rate: float


@dataclass(frozen=True)
class LocalStepsReply(Message, kind="experts.local.reply"):
    """The parameters after the silo's steps, its mean losses, and what they cost.

    Reveals: the sum of many gradients; from few samples they can be rebuilt. Clip, add noise, or sum securely.
    """

    parameters: dict[str, Tensor]
    matching: float
    independence: float
    forward: float
    backward: float

    def validate(self, question: Message) -> None:
        """Names and shapes are those that were asked about."""
        if isinstance(question, LocalSteps):
            same_shapes(self.kind, self.parameters, question.parameters)
