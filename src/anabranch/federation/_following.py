"""A server's optimiser that follows means of answers, round after round, past numbers that are not finite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from anabranch.errors import UnsoundError
from anabranch.federation._federation import Federation, first_few
from anabranch.federation._mean import Mean
from anabranch.federation._message import Message
from anabranch.federation._optimizer import OptimizerState
from anabranch.federation._verdict import Verdict

LOG = logging.getLogger(__name__)
MOST_SKIPPED = 3  # rounds in a row
MOST_UNSOUND = 10  # rounds in a row of one silo, in which the others went on


@dataclass(frozen=True)
class _Step:
    """One that was taken before it was known whether its numbers are finite."""

    round: int
    sequence: int
    question: Message
    names: Sequence[str]
    verdict: Verdict


class Following:
    """Takes a step along `sign` × the mean of the silos' `gradients`, and calls `then` after each.

    An aggregate that is not finite never moves a parameter: silos are asked again, one by one, so that the one at fault
    is named, and the step is taken with the others. Where too few are left the round is skipped, and after a few such
    rounds in a row an UnsoundError ends the run. So it does if one silo is at fault whenever it is asked: a model that
    does not know its data is not the one that was asked for.

    On a GPU an aggregate is looked at only when the next one has been asked for (`late`), so that the GPU never waits:
    Adam itself leaves parameters and moments as they are meanwhile. If it was not finite, its round is repeated, and
    then the one that was asked for too early. So every step is the one that it would have been, only later. Where
    questions carry parameters of other followers too, these are `others`, and the same holds for their steps.
    """

    def __init__(
        self,
        federation: Federation,
        optimizer: OptimizerState,
        then: Callable[[], None] = lambda: None,
        sign: int = 1,
        others: Sequence[Following] = (),
    ) -> None:
        self.federation, self.optimizer, self.then, self.sign = federation, optimizer, then, sign
        self.others = tuple(others)
        on_gpu = next(iter(optimizer.parameters.values())).is_cuda
        self.late = on_gpu and optimizer.settings.name == "adam"
        self.failures: dict[str, str] = {}
        self._open: _Step | None = None
        self._skipped = 0
        self._unsound: dict[str, int] = {}

    def take(
        self, question: Message | Callable[[], Message], names: Sequence[str], ahead: Sequence[str] = ()
    ) -> Mean | None:
        """One step; the mean that it followed, or None if the round was skipped. `failures` says who is not in it.

        The question's tensors must stay those of the step: the optimiser's own do, those of `others` are to be copied.
        A question that holds copies is given as what makes it. `ahead` names who will be asked the same in the next
        round.
        """
        self.failures = {}
        place = self.federation.sequence
        asked = question() if callable(question) else question
        mean = self._ask(asked, names, ahead)
        if not self._all_settled():
            self.federation.sequence = place
            asked = question() if callable(question) else question  # parameters have moved since
            mean = self._ask(asked, names)
        if mean is None:
            return None
        self._blame(mean)
        if mean.verdict is None:
            self._follow(mean)
            self._done()
        else:
            self._follow(mean)
            self._open = _Step(self.federation.round, place, asked, names, mean.verdict)
        return mean

    def settle(self) -> bool:
        """Makes sure of the step before, and repeats it if need be; whether there was none. Before a state is read."""
        step, self._open = self._open, None
        if step is None or step.verdict:
            if step is not None:
                self._clear(step.names)
                self._done()
            return True
        self.optimizer.steps -= 1
        with self.federation.back_at(step.round, step.sequence):
            mean = self._ask(step.question, step.names, apart=True)
        if mean is not None:
            self._blame(mean)
            self._follow(mean)
            self._done()
        return False

    def forget(self) -> None:
        """Another state has been loaded: what was open is of no matter."""
        self._open, self._skipped, self._unsound = None, 0, {}

    def _all_settled(self) -> bool:
        """Whether all steps that a question rests on are as they were when it was asked."""
        settled = True
        for other in self.others:
            other.failures = {}
            settled &= other.settle()
            self.failures |= other.failures
        return self.settle() and settled

    def _blame(self, mean: Mean) -> None:
        """Notes who is not in it, and ends the run where one never is for numbers that are not finite."""
        self.failures |= mean.failures
        if mean.verdict is not None:  # nobody has looked yet
            return
        self._clear(mean.answered)
        for name in sorted(mean.unsound):
            self._unsound[name] = self._unsound.get(name, 0) + 1
            if self._unsound[name] >= MOST_UNSOUND:
                raise UnsoundError(
                    f"Silo '{name}' gave numbers that are not finite {MOST_UNSOUND} times in a row, and the others went"
                    f" on without its data. {mean.failures.get(name, '')} {UnsoundError.ADVICE}"
                )

    def _clear(self, names: Sequence[str]) -> None:
        for name in names:
            self._unsound.pop(name, None)

    def _follow(self, mean: Mean) -> None:
        slopes = mean.reply.gradients
        if self.sign < 0:
            slopes = dict(zip(slopes, torch._foreach_neg(list(slopes.values())), strict=True))
        self.optimizer.step(slopes, None if mean.verdict is None else mean.verdict.bad)

    def _done(self) -> None:
        self._skipped = 0
        self.then()

    def _ask(
        self, question: Message, names: Sequence[str], ahead: Sequence[str] = (), apart: bool = False
    ) -> Mean | None:
        try:
            return self.federation.mean(question, names, late=self.late, ahead=ahead, apart=apart)
        except UnsoundError as error:
            self._skipped += 1
            self.failures |= error.failures
            reasons = first_few(error.failures)
            LOG.warning("Round %d is skipped. %s", self.federation.round, reasons)
            if self._skipped < MOST_SKIPPED:
                return None
            raise UnsoundError(
                f"{MOST_SKIPPED} rounds in a row gave numbers that are not finite, and were skipped. The last of them:"
                f" {reasons} {UnsoundError.ADVICE}"
            ) from error
