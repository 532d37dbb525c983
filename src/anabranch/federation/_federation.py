"""The joint between methods and engines: `Federation.ask`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import CheckpointError, DataError, QuorumError, UnsoundError, UsageError
from anabranch.federation._encoding import size
from anabranch.federation._engine import Engine
from anabranch.federation._ledger import Ledger
from anabranch.federation._local import LocalEngine
from anabranch.federation._mean import Mean, weighted_mean
from anabranch.federation._message import Envelope, Message
from anabranch.federation._privacy import Postprocessor
from anabranch.federation._replies import Replies
from anabranch.federation._silo import Silo
from anabranch.federation._standing import Gathered, Join, Joined, Keep, Rewind
from anabranch.federation._verdict import Verdict
from anabranch.federation._weights import Participation, weights


class Federation:
    """Silos, and everything a server half may do with them.

    `weighting` is "size", "uniform" or {silo: λ}; `participation` says who is asked each round; a round counts while
    at least `quorum` silos answer. `postprocessors` guard what leaves a silo. The `ledger` counts bytes each way.
    Where silos are far away, `insist=False` lets a run begin without those who cannot join: they are `absent`.

    >>> federation = Federation([Silo("a", torch.zeros(30, 2)), Silo("b", torch.ones(10, 2))])
    >>> federation.open("run", seed=0)
    >>> federation.weight
    {'a': 0.75, 'b': 0.25}
    """

    def __init__(
        self,
        silos: Sequence[Silo] | Engine,
        weighting: str | Mapping[str, float] = "size",
        participation: Participation | None = None,
        quorum: int = 1,
        postprocessors: Sequence[Postprocessor] = (),
        fused: bool = True,
        insist: bool = True,
    ) -> None:
        self.engine: Engine
        if isinstance(silos, Sequence):
            self.engine = LocalEngine(silos, fused, postprocessors)
        else:
            if postprocessors or not fused:
                raise UsageError("An engine brings its own guards; give the postprocessors and 'fused' to the engine.")
            self.engine = silos
        if not 1 <= quorum <= len(self.engine.names):
            raise UsageError(f"A quorum of {quorum} was given for {len(self.engine.names)} silos.")
        self.weighting = weighting
        self.participation = participation or Participation()
        self.quorum = quorum
        self.insist = insist
        self.absent: dict[str, str] = {}
        self.ledger = Ledger()
        self.sizes: dict[str, int] = {}
        self.weight: dict[str, float] = {}
        self.numbers: Tensor = torch.empty(0, dtype=torch.long)
        self.dimension = 0
        self.device = getattr(self.engine, "device", torch.device("cpu"))  # where what silos share is computed with
        self.seed = 0
        self.round = 0
        self.run = ""
        self._session = secrets.randbits(48)
        self.sequence = 0  # questions of this round so far

    @property
    def names(self) -> list[str]:
        """All silos that take part, sorted."""
        return [name for name in self.engine.names if name not in self.absent] if self.absent else self.engine.names

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Goes on without these silos; a QuorumError when too few are left."""
        self.absent.update(reasons)
        if len(self.names) < self.quorum:
            raise self.too_few(len(self.names), self.absent)

    def open(self, run: str, seed: int) -> None:
        """Introduces the run to every silo and learns sizes, from which λ follows, and the points' dimension."""
        self.run, self.seed = run, seed
        self.absent.clear()
        self._session = secrets.randbits(48)
        self.start_round(0)
        joined: dict[str, Joined] = self._present(Join(seed=seed))
        first = self.names[0]
        for name, reply in joined.items():
            if reply.dimension != joined[first].dimension:
                raise DataError(
                    f"Silo '{name}' has points in {reply.dimension} dimensions, '{first}' in"
                    f" {joined[first].dimension}; all silos must share one space."
                )
        self.dimension = joined[first].dimension
        self.sizes = {name: reply.count for name, reply in joined.items()}
        self.weight = weights(self.weighting, self.sizes)
        self.numbers = torch.tensor([joined[name].number for name in self.names])

    def start_round(self, number: int) -> None:
        """Questions from here on belong to this round."""
        self.round, self.sequence = number, 0

    @contextmanager
    def back_at(self, number: int, sequence: int) -> Iterator[None]:
        """Within, questions belong to an earlier place of the run again."""
        now = self.round, self.sequence
        self.round, self.sequence = number, sequence
        try:
            yield
        finally:
            self.round, self.sequence = now

    def chosen(self, ahead: int = 0) -> list[str]:
        """The silos that take part in this round, or so many rounds ahead."""
        if self.participation.rule == "all":
            return self.names
        return self.participation.choose(self.weight, seeds.generator(self.seed, "participation", self.round + ahead))

    def ask(
        self,
        question: Message | Mapping[str, Message],
        to: Sequence[str] | None = None,
        timeout: float | None = None,
        one_by_one: bool = False,
    ) -> Replies:
        """Asks one question of all (or of those in `to`), or a question of its own of each silo.

        With `one_by_one` each silo answers before the next is asked, so that it can see what the former changed.
        """
        if isinstance(question, Message):
            questions = dict.fromkeys(self.names if to is None else to, question)
        else:
            questions = dict(question)
        self.sequence += 1
        envelopes = {name: self._envelope(q, self.sequence) for name, q in questions.items()}
        replies = Replies()
        for batch in [[name] for name in sorted(envelopes)] if one_by_one else [sorted(envelopes)]:
            part = self.engine.ask({name: envelopes[name] for name in batch}, timeout)
            replies.answers.update(part.answers)
            replies.failures.update(part.failures)
            replies.unsound |= part.unsound
        for name, asked in questions.items():
            self.ledger.add(name, asked.kind, "down", size(asked))
        for name, answer in replies.answers.items():
            self.ledger.add(name, answer.kind, "up", size(answer))
        return replies

    def gather(
        self,
        question: Message,
        to: Sequence[str] | None = None,
        timeout: float | None = None,
        share_with: Sequence[str] | None = None,
    ) -> Replies:
        """The peer form: every silo that answers also receives all the answers, as `silo.gathered[kind]`.

        With `share_with` those silos receive them instead, each all but its own, beside what it had from others. The
        server relays them; within one process nothing is copied.
        """
        replies = self.ask(question, to, timeout)
        if replies.answers and share_with is None:
            handed = self.ask(Gathered.of(replies.answers), list(replies.answers), timeout)
            replies.failures.update(handed.failures)
        elif share_with is not None:
            replies.failures.update(self.hand_out(replies.answers, share_with, timeout))
        return replies

    def hand_out(
        self, answers: Mapping[str, Message], to: Sequence[str], timeout: float | None = None
    ) -> dict[str, str]:
        """Gives silos the answers of others, beside what they had before; who could not be reached, and why."""
        others = {name: {peer: a for peer, a in answers.items() if peer != name} for name in to}
        parcels = {name: Gathered.of(those, added=True) for name, those in others.items() if those}
        return self.ask(parcels, timeout=timeout).failures if parcels else {}

    def mean(
        self,
        question: Message,
        to: Sequence[str] | None = None,
        timeout: float | None = None,
        late: bool = False,
        ahead: Sequence[str] = (),
        apart: bool = False,
    ) -> Mean:
        """The λ-weighted mean of what the silos answer, over those who answer; below the quorum, a QuorumError.

        The server asks for no more than the mean, so an engine may compute it in one pass. If that is not finite, or
        with `apart`, silos are asked one by one; `late` leaves it to the caller to look whether it is. `ahead` names
        who will be asked the same in the next round: they may begin what does not depend on this one.
        """
        names = sorted(self.names if to is None else to)
        share = self.participation.share(self.weight, names)
        if len(names) < self.quorum:
            raise QuorumError(
                f"{_silos(len(names))} {'was' if len(names) == 1 else 'were'} chosen to be asked in round"
                f" {self.round}, and the quorum is {self.quorum};"
                " have more of them take part, or lower the quorum."
            )
        envelope = self._envelope(question, self.sequence + 1)
        if ahead and hasattr(self.engine, "begin"):
            self.engine.begin(question, ahead, self.round + 1)
        fused = None if apart else self.engine.fused_mean(envelope, names, share)
        verdict: Verdict | None = getattr(self.engine, "verdict", None)
        if fused is not None and (late or verdict is None or verdict):
            self.sequence += 1
            down, up = size(question), size(fused)
            for name in names:
                self.ledger.add(name, question.kind, "down", down)
                self.ledger.add(name, fused.kind, "up", up)
            return Mean(fused, names, verdict=verdict if late else None)
        replies = self.ask(question, names, timeout)
        answered = list(replies.answers)
        if len(answered) < self.quorum:
            if len(answered) + len(replies.unsound) < self.quorum:
                raise self.too_few(len(answered), replies.failures)
            error = UnsoundError(
                f"Of {_silos(len(names))} {len(answered) or 'none'} gave finite numbers in round {self.round}, and"
                f" the quorum is {self.quorum}. {first_few(replies.failures)} {UnsoundError.ADVICE}"
            )
            error.failures = replies.failures
            raise error
        return Mean(
            weighted_mean(list(replies.answers.values()), self.participation.share(self.weight, answered)),
            answered,
            replies.failures,
            unsound=frozenset(replies.unsound),
        )

    def everyone(self, question: Message | Mapping[str, Message], tries: int = 3) -> dict[str, Any]:
        """Asks all silos and insists: an exchange in which one fails is repeated by its unfinished part.

        The repetition stands at the same place of the run, so that a silo whose reply was lost only repeats it.
        """
        asked = dict.fromkeys(self.names, question) if isinstance(question, Message) else dict(question)
        missing, answers = asked, dict[str, Message]()
        failures: dict[str, str] = {}
        place = self.sequence
        for _ in range(tries):
            self.sequence = place
            replies = self.ask(missing)
            answers.update(replies.answers)
            failures = replies.failures
            missing = {name: missing[name] for name in failures}
            if not missing:
                return {name: answers[name] for name in sorted(answers)}
        raise self.too_few(len(answers), failures, everyone=len(asked))

    def keep(self, oldest: int) -> None:
        """Every silo stores its state under this round, and forgets rounds before `oldest`."""
        replies = self.ask(Keep(oldest=oldest))
        everyone = len(self.names) if self.insist else 0  # who has not kept may be unable to rewind, later
        if len(replies.answers) < (everyone or self.quorum):
            raise self.too_few(len(replies.answers), replies.failures, everyone)

    def rewind(self, number: int, needed: bool = True) -> None:
        """Every silo returns to the state it kept at that round; one that cannot is left out, or ends the run.

        `needed` says whether the method keeps anything in silos that a silo cannot do without.
        """
        self.start_round(number)
        replies = self.ask(Rewind(number, needed or self.insist))
        if replies.failures and self.insist:
            raise CheckpointError(" ".join(replies.failures.values()))
        self.leave_out(replies.failures)

    def _envelope(self, question: Message, sequence: int) -> Envelope:
        return Envelope(self.run, self.round, sequence, question, self._session)

    def _present(self, question: Message) -> dict[str, Any]:
        """What all silos answer, or those who do where the federation does not insist on all."""
        replies = self.ask(question)
        if replies.failures and self.insist:
            raise self.too_few(len(replies.answers), replies.failures, everyone=len(self.names))
        self.leave_out(replies.failures)
        return dict(replies.answers)

    def too_few(self, answered: int, failures: Mapping[str, str], everyone: int = 0) -> QuorumError:
        """What to say where more answers are needed: the quorum's, or everyone's of so many."""
        needed = everyone or self.quorum
        lower = ", or go on without them, with a lower quorum" if needed > 1 and not everyone else ""
        return QuorumError(
            f"{_silos(answered)} answered in round {self.round}, and {needed}"
            f" {'is' if needed == 1 else 'are'} needed. {first_few(failures)} Resume the run once they answer{lower}; a"
            " silo that refuses needs another run, which asks for less."
        )


def _silos(number: int) -> str:
    return f"{number or 'No'} silo{'' if number == 1 else 's'}"


def first_few(failures: Mapping[str, str]) -> str:
    """The reasons of the first few, as sentences."""
    reasons = [reason if reason.endswith(".") else f"{reason}." for reason in failures.values()]
    return " ".join(reasons[:3]) + (f" And {len(reasons) - 3} more." if len(reasons) > 3 else "")
