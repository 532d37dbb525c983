"""Everything that federated classifiers send. This page is their whole privacy surface."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import Message, same_shapes


@dataclass(frozen=True)
class LocalSteps(Message, kind="personal.local"):
    """Asks a silo to train for some epochs from these parameters: a body, with the head where all silos share it.

    The first `head_epochs` move the silo's own head alone, the others the body alone; 0 moves everything together.

    Reveals: nothing of the data beyond what the shared parameters have learned from all silos.
    """

    parameters: dict[str, Tensor]
    classes: int
    epochs: int
    head_epochs: int
    batch: int
    rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class LocalStepsReply(Message, kind="personal.local.reply"):
    """The shared parameters after local training, and the number of points trained on. A head that is the silo's own
    stays there.

    Reveals: the sum of many gradients. Which classes a silo holds can be read from a shared head, and hardly hidden
    without noise; small silos can be inverted to their samples. Clip, add noise, or sum securely.
    """

    parameters: dict[str, Tensor]
    count: int

    def validate(self, question: Message) -> None:
        """Names and shapes are those that were asked about."""
        if isinstance(question, LocalSteps):
            same_shapes(self.kind, self.parameters, question.parameters)
        if not 1 <= self.count < 2**53:
            raise MessageError(f"A silo that trained on {self.count} points cannot be.")


@dataclass(frozen=True)
class Score(Message, kind="personal.score"):
    """Asks how well these parameters do on points that the silo has never trained on.

    Where the head is the silo's own, a copy of it is first fitted to them for `epochs`, on training points.

    Reveals: nothing of the data beyond what the shared parameters have learned from all silos.
    """

    parameters: dict[str, Tensor]
    classes: int
    epochs: int
    batch: int
    rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class ScoreReply(Message, kind="personal.score.reply"):
    """How many held-out points are classified right, of how many.

    Reveals: the number of held-out points, and one count about them. Whoever may choose parameters and ask often learns
    about single points from such counts: limit the questions.
    """

    right: int
    total: int

    def validate(self, question: Message) -> None:
        """A part of a whole."""
        if not (0 <= self.right <= self.total and 1 <= self.total < 2**53):
            raise MessageError(f"{self.right} right answers of {self.total} cannot be.")
