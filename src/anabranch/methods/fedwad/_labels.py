"""Labels for coresets, and the classifier that they make together (FedWAD, section 4).

A coreset is learned without labels. Each silo then says which label lies nearest to each point of its own coreset, and
all coresets together are the examples of a nearest-neighbour classifier, which every silo may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import MessageError, RefusedError, UsageError
from anabranch.federation import Federation, Message, Silo, answers
from anabranch.methods.fedwad._coreset import Coreset
from anabranch.methods.fedwad._views import view_of
from anabranch.transport import half_squared_cost, nearest


@dataclass(frozen=True)
class Label(Message, kind="fedwad.label"):
    """Gives points (k, d) and asks which label most of the silo's samples nearest to each of them bear.

    Reveals: nothing of the data beyond what the points have learned from the silo.
    """

    points: Tensor
    neighbours: int

    def answers(self) -> int:
        """One for each point."""
        return len(self.points)


@dataclass(frozen=True)
class LabelReply(Message, kind="fedwad.label.reply"):
    """One label (k,) for each point.

    Reveals: for every point the label of the silo's nearest sample; with it, which labels the silo holds at all. With
    one neighbour **a label is that of a single person**; a silo whose `smallest_group` is larger refuses it, and
    answers a majority among that many neighbours. Who may choose the points and ask often draws the borders between the
    silo's classes: limit the answers. No more points are answered than one for each `smallest_part` samples.
    """

    label: Tensor

    def validate(self, question: Message) -> None:
        """A whole number, not negative, for each point."""
        if isinstance(question, Label) and (
            self.label.shape != question.points.shape[:1] or self.label.dtype != torch.int64
        ):
            raise MessageError(f"Labels arrived as {tuple(self.label.shape)} for {len(question.points)} points.")
        if bool((self.label < 0).any()):
            raise MessageError("A negative label arrived.")


@answers(Label)
def labels(silo: Silo, question: Label) -> LabelReply:
    """The majority label of the nearest samples; of labels that are as frequent, the smallest."""
    if not silo.labelled:
        raise RefusedError(f"Silo '{silo.name}' has no labels to tell.")
    data = view_of(silo, "points").points
    if question.points.ndim != 2 or question.points.shape[1] != data.shape[1]:
        raise MessageError(f"Points to label arrived as {tuple(question.points.shape)} for others.")
    if not 1 <= question.neighbours <= len(silo):
        raise MessageError(f"{question.neighbours} neighbours were asked for among {len(silo)} samples.")
    silo.rests_on(question.neighbours)
    silo.divides(len(question.points))
    silo.affords("labels", len(data) * len(question.points), len(data) * question.points.numel())
    cost = half_squared_cost(question.points.to(data), data)
    near = cost.topk(question.neighbours, dim=1, largest=False).indices
    return LabelReply(silo.data.label[near].mode(1).values)


def label_coresets(federation: Federation, coresets: Mapping[str, Coreset], neighbours: int = 1) -> dict[str, Tensor]:
    """For each silo the labels (k,) of its own coreset: what most of the `neighbours` nearest samples there bear.

    Asked in the run in which the coresets were learned, as long as the federation is open.
    """
    if neighbours < 1:
        raise UsageError(f"{neighbours} neighbours were asked for; a point is labelled by 1 or more.")
    if not coresets:
        return {}
    if not federation.weight:
        federation.open("coreset-labels", 0)
    federation.start_round(federation.round + 1)
    questions = {name: Label(coreset.points.float(), neighbours) for name, coreset in coresets.items()}
    return {name: reply.label for name, reply in federation.everyone(questions).items()}


def nearest_neighbour(coresets: Mapping[str, Coreset], labels: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The label (n,) of the point nearest to each x (n, d), among the coresets of all silos.

    >>> coreset = Coreset(torch.tensor([[0.0], [10.0]]), torch.tensor([0.5, 0.5]), ())
    >>> nearest_neighbour({"a": coreset}, {"a": torch.tensor([3, 7])}, torch.tensor([[1.0], [8.0], [6.0]]))
    tensor([3, 7, 7])
    """
    if not coresets or coresets.keys() != labels.keys():
        odd = ", ".join(sorted(coresets.keys() ^ labels.keys())) or "none at all"
        raise UsageError(f"Coresets and labels must be there for the same silos, one at least; these differ: {odd}.")
    names = sorted(coresets)
    points = torch.cat([coresets[name].points for name in names]).double()
    known = torch.cat([labels[name] for name in names])
    return known[nearest(x.double(), points).index]
