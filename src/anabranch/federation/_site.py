"""A silo behind a wire: bytes in, bytes out, and between them the site's policy and its log."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anabranch.errors import AnabranchError, MessageError, RefusedError, out_of_memory
from anabranch.federation._audit import AuditLog, digest, shapes_of
from anabranch.federation._encoding import encode
from anabranch.federation._exhausted import exhausted
from anabranch.federation._message import Envelope, Message
from anabranch.federation._policy import Policy
from anabranch.federation._privacy import Postprocessor, guarded_answer
from anabranch.federation._silo import ANSWERED, Silo
from anabranch.federation._wire import Refused, decode_question, readable


@dataclass(frozen=True)
class _Given:
    """The last answer: where in the run, to which bytes, as which bytes."""

    place: tuple[Any, ...]
    question: str
    sent: bytes


class Site:
    """Answers questions that arrive as bytes, one at a time. Whatever arrives, it returns an encoded message.

    The policy's limits become the silo's own. A question that was answered already gets the same bytes again.
    """

    def __init__(
        self,
        silo: Silo,
        policy: Policy | None = None,
        log: AuditLog | None = None,
        postprocessors: Sequence[Postprocessor] = (),
    ) -> None:
        self.silo, self.policy, self.log = silo, policy, log
        self.postprocessors = tuple(postprocessors)
        if policy is not None:
            silo.limits.update(policy.limits)
            silo.smallest_group = max(silo.smallest_group, policy.smallest_group)
            silo.smallest_part = policy.smallest_part
        self._last: _Given | None = None
        self._lock = threading.Lock()

    def answer(self, data: bytes) -> bytes:
        """The encoded reply, or an encoded `Refused` with the reason."""
        with self._lock:
            entry: dict[str, Any] = {"question": digest(data), "bytes_in": len(data)}
            try:
                envelope = decode_question(data)
            except MessageError as error:
                return self._refused(error, entry)
            entry |= {
                "run": envelope.run,
                "session": envelope.session,
                "round": envelope.round,
                "sequence": envelope.sequence,
                "kind": envelope.question.kind,
                "answers": envelope.question.answers(),
            }
            try:
                if self.policy is not None:
                    self.policy.refuse(self.silo.name, envelope)
                if self._last is not None and self._last.place == envelope.place:
                    if self._last.question != entry["question"]:
                        raise RefusedError(f"Site '{self.silo.name}' was asked two questions at one place of the run.")
                    return self._sent("repeated", self._last.sent, entry)
                self._recall(envelope.run)
                reply = guarded_answer(self.silo, envelope, self.postprocessors)
            except AnabranchError as error:
                return self._refused(error, entry)
            except Exception as error:
                # What went wrong in the site's own code may quote its data: the text stays in the site's log.
                entry["cause"] = f"{type(error).__name__}: {error}"
                sentence = f"Site '{self.silo.name}' failed on '{envelope.question.kind}' ({type(error).__name__})."
                if out_of_memory(error):
                    sentence = f"Site '{self.silo.name}': {exhausted(envelope.question.kind)}"
                return self._refused(AnabranchError(sentence), entry)
            return self._answered(envelope, reply, entry)

    def _recall(self, run: str) -> None:
        """What this run was answered before a restart counts against its limits."""
        if self.log is None or run == self.silo.run:
            return
        self.silo.enter(run)
        for kind in self.silo.limits:
            self.silo.state[f"{ANSWERED}{kind}"] = torch.tensor(self.log.answered(run, kind))

    def _answered(self, envelope: Envelope, reply: Message, entry: dict[str, Any]) -> bytes:
        sent = encode(reply)
        self._last = _Given(envelope.place, entry["question"], sent)
        return self._sent("answered", sent, {**entry, "reply": reply.kind, "shapes": shapes_of(reply)})

    def _refused(self, error: AnabranchError, entry: dict[str, Any]) -> bytes:
        refusal = Refused(type(error).__name__, readable(str(error)))
        return self._sent("refused", encode(refusal), {**entry, "sentence": refusal.sentence})

    def _sent(self, verdict: str, sent: bytes, entry: dict[str, Any]) -> bytes:
        if self.log is not None:
            self.log.add(verdict=verdict, **entry, bytes_out=len(sent), answer=digest(sent))
        return sent
