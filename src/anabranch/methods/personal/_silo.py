"""The silo half: trains on its own points, keeps its head, and scores on what it held out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from anabranch.errors import DataError, RefusedError, UsageError
from anabranch.federation import STEP, Silo, answers
from anabranch.methods.personal._descent import descend, fit_head
from anabranch.methods.personal._messages import LocalSteps, LocalStepsReply, Score, ScoreReply
from anabranch.methods.personal._networks import HEAD, PASS, all_features, cost_of_point, initial_head
from anabranch.methods.personal._settings import Descent

STATE = "personal/"  # where a silo's own head lies in its state


@answers(LocalSteps)
def local_steps(silo: Silo, question: LocalSteps) -> LocalStepsReply:
    """The shared parameters after the silo's epochs; its own head, where it has one, is kept for the next time."""
    silo.rests_on(len(silo))
    rule = _prepare(silo, question, question.epochs)
    x, label = silo.data.x, silo.data.label.long()
    network = _network(silo, question)
    body = [name for name in network if name not in HEAD]
    if question.head_epochs:
        if not 0 < question.head_epochs < question.epochs or HEAD[0] in question.parameters:
            raise UsageError("A head trains alone where it is a silo's own, and for fewer epochs than there are.")
        known = all_features(network, x)
        network |= fit_head(network, known, label, _orders(silo, "order", 0, question.head_epochs), rule)
        descend(network, body, x, label, _orders(silo, "order", question.head_epochs, question.epochs), rule)
    else:
        descend(network, list(network), x, label, _orders(silo, "order", 0, question.epochs), rule)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in network.values()):
        raise DataError(f"Silo '{silo.name}' met numbers that are not finite while training; lower the rate.")
    if HEAD[0] not in question.parameters:
        silo.state |= {STATE + name: network[name] for name in HEAD}
    return LocalStepsReply({name: network[name].to(t.device) for name, t in question.parameters.items()}, len(silo))


@answers(Score)
def score(silo: Silo, question: Score) -> ScoreReply:
    """Right answers on held-out points, never on training points; the head that is kept does not change."""
    if silo.held_out is None or silo.held_out_label is None:
        raise RefusedError(f"Silo '{silo.name}' holds no labelled points out; give it some to be scored on.")
    silo.rests_on(len(silo.held_out))
    rule = _prepare(silo, question, question.epochs)
    network = _network(silo, question)
    if question.epochs and HEAD[0] not in question.parameters:
        silo.rests_on(len(silo))
        known = all_features(network, silo.data.x)
        network |= fit_head(network, known, silo.data.label.long(), _orders(silo, "tune", 0, question.epochs), rule)
    answer = all_features(network, silo.held_out) @ network[HEAD[0]].T + network[HEAD[1]]
    right = answer.argmax(1) == silo.held_out_label.to(answer.device)
    return ScoreReply(int(right.sum()), len(right))


def _prepare(silo: Silo, question: LocalSteps | Score, epochs: int) -> Descent:
    """How to descend, once it is known that the question can be answered and what it costs."""
    rule = Descent(question.batch, question.rate, question.momentum, question.weight_decay)
    if not 2 <= question.classes <= 2**20 or epochs < 0:
        raise UsageError(f"{question.classes} classes and {epochs} epochs were asked for, which cannot be.")
    if not 0 <= int(silo.data.label.min()) <= int(silo.data.label.max()) < question.classes:
        raise DataError(f"Silo '{silo.name}' has labels outside of 0 to {question.classes - 1}; set classes.")
    count, held = len(silo), 0 if silo.held_out is None else len(silo.held_out)
    cost = cost_of_point(question.parameters, silo.data.x.shape[1], question.classes)
    size = cost.head + sum(tensor.numel() for tensor in question.parameters.values())
    rows = max(PASS, min(question.batch, count))
    steps = epochs * math.ceil(count / question.batch)
    # Forward, and twice as much backward; updating all parameters costs as much as some points do.
    work = 3 * (epochs * count + held) * cost.work + steps * (4 * size + STEP)
    numbers = 4 * size + rows * cost.numbers + count * (silo.data.x.shape[1] + 2 * question.classes)
    silo.affords(f"{epochs} epochs over {count} points", numbers, work)
    return rule


def _network(silo: Silo, question: LocalSteps | Score) -> dict[str, Tensor]:
    """The parameters that came, on the silo's device, with its own head where none came."""
    own: Mapping[str, Tensor] = {}
    if HEAD[0] not in question.parameters:
        own = {name: silo.state[STATE + name] for name in HEAD if STATE + name in silo.state}
        fresh = initial_head(question.parameters, question.classes, silo.seed)
        if own and own[HEAD[0]].shape != fresh[HEAD[0]].shape:
            raise RefusedError(f"Silo '{silo.name}' has a head of another shape from earlier in this run.")
        own = own or fresh
    return {name: tensor.to(silo.data.x.device) for name, tensor in {**question.parameters, **own}.items()}


def _orders(silo: Silo, purpose: str, start: int, stop: int) -> Iterator[Tensor]:
    """A fresh order of the silo's points for each epoch."""
    for epoch in range(start, stop):
        yield torch.randperm(len(silo), generator=silo.generator(purpose, epoch))
