"""Silos that count: a question, its two halves, and the ways in which a silo gives no good answer."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.federation import Federation, Message, Silo, answers, answers_together


@dataclass(frozen=True)
class Count(Message, kind="test.federation.count"):
    """Asks for a number that grows with every call.

    Reveals: nothing; it belongs to the tests.
    """

    scale: Tensor
    asked: int = 1

    def answers(self):
        return self.asked


@dataclass(frozen=True)
class Counted(Message, kind="test.federation.count.reply"):
    """The silo's number times the scale.

    Reveals: nothing; it belongs to the tests.
    """

    value: Tensor
    calls: int


@dataclass(frozen=True)
class Unheard(Message, kind="test.federation.unheard"):
    """A question that nobody answers.

    Reveals: nothing; it belongs to the tests.
    """


def value_of(silo, question):
    return question.scale * float(silo.data.x[0, 0])


@answers(Count)
def count(silo, question) -> Counted:
    silo.calls = getattr(silo, "calls", 0) + 1
    if hasattr(silo, "behaviour"):
        return silo.behaviour(question)
    return Counted(value_of(silo, question), silo.calls)


@answers_together(Count)
def count_together(silos, question, weights):
    for silo in silos:
        silo.fused = getattr(silo, "fused", 0) + 1
    behaviours = [s.behaviour(question).value for s in silos if hasattr(s, "behaviour")]
    values = [value_of(silo, question) for silo in silos if not hasattr(silo, "behaviour")]
    mean = (weights[:, None] * torch.stack(values + behaviours)).sum(0)
    return Counted(mean, 0)


QUESTION = Count(torch.tensor([1.0, 2.0]))


def silo(name, number=1.0, count=10, **options):
    options.setdefault("secret", ord(name[:1] or "?"))
    return Silo(name, torch.full((count, 2), float(number)), **options)


def three(**options):
    return [silo("a", 1, 10, **options), silo("b", 2, 20, **options), silo("c", 4, 10, **options)]


def opened(silos, **options):
    federation = Federation(silos, **options)
    federation.open("test", seed=3)
    return federation


def behave(silo, behaviour):
    silo.behaviour = behaviour


def fail(question):
    raise RuntimeError("the disk is gone")


def not_a_number(question):
    return Counted(question.scale * float("nan"), 0)


def nonsense(question):
    return 42


def linger(question):
    time.sleep(0.05)
    return Counted(question.scale, 0)
