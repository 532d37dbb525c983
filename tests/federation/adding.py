"""Sites that add: a question, its silo half, and a federation that reaches the sites through bytes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import (
    Envelope,
    Federation,
    Join,
    Message,
    Policy,
    RemoteEngine,
    Silo,
    Site,
    answers,
    encode_question,
)


@dataclass(frozen=True)
class Add(Message, kind="test.site.add"):
    """Asks for the silo's running sum after adding a number.

    Reveals: nothing; it belongs to the tests.
    """

    amount: Tensor


@dataclass(frozen=True)
class Sum(Message, kind="test.site.add.reply"):
    """The sum.

    Reveals: nothing; it belongs to the tests.
    """

    total: Tensor

    def validate(self, question):
        if isinstance(question, Add) and self.total.shape != question.amount.shape:
            raise MessageError("a sum of another shape")


@answers(Add)
def add(silo: Silo, question: Add) -> Sum:
    trouble = getattr(silo, "trouble", None)  # what a test wants it to do instead of answering well
    if trouble == "raises":
        raise ValueError("the patient's name is Ada")
    if trouble == "nan":
        return Sum(question.amount * torch.nan)
    if trouble == "shape":
        return Sum(torch.zeros(7))
    if trouble == "kind":
        return Join(3)
    silo.state["sum"] = silo.state.get("sum", torch.zeros(2)) + question.amount
    return Sum(silo.state["sum"])


KINDS = ("join", "keep", "rewind", "gathered", "test.site.add")
AMOUNT = Add(torch.tensor([1.0, 2.0]))


def site(name="a", points=5, log=None, postprocessors=(), **policy):
    silo = Silo(name, torch.arange(2.0 * points).reshape(points, 2), secret=3)
    return Site(silo, Policy(**{"kinds": KINDS, "rounds": 10, **policy}), log, postprocessors)


def question(message=AMOUNT, round=1, sequence=1, run="run", session=0):
    return encode_question(Envelope(run, round, sequence, message, session))


def connected(*sites, carry=None, **options):
    """A federation that speaks to the sites through bytes."""
    by_name = {one.silo.name: one for one in sites}

    def through(questions, patience):
        return {name: by_name[name].answer(data) for name, data in questions.items()}

    federation = Federation(RemoteEngine(by_name, carry or through, **options))
    federation.open("run", seed=0)
    return federation
