"""Silos elsewhere: questions are encoded, carried by an engine, and answers are checked as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anabranch.errors import AnabranchError, MessageError, NotFiniteError, UsageError
from anabranch.federation._audit import digest
from anabranch.federation._encoding import decode
from anabranch.federation._halves import reply_type
from anabranch.federation._message import Envelope, Message, check
from anabranch.federation._replies import Replies
from anabranch.federation._wire import Refused, encode_question, readable

Carry = Callable[[Mapping[str, bytes], float | None], Mapping[str, bytes | BaseException]]
"""Takes each silo's question to it, all at once, and brings back its answer, or why there is none, within the time."""

Book = Callable[[dict[str, Any]], None]
"""Takes down what was asked and what became of it: before a question leaves, and for every silo's answer."""

PATIENCE = 600.0  # seconds, where a question names no time of its own


class RemoteEngine:
    """Asks silos in other processes. An adapter to NVFLARE, Flower or a test is one function, `carry`."""

    def __init__(
        self, names: Iterable[str], carry: Carry, patience: float = PATIENCE, book: Book = lambda entry: None
    ) -> None:
        self.names = sorted(names)
        if not self.names:
            raise UsageError("A federation needs at least one silo; none is present.")
        self.carry = carry
        self.patience = patience
        self.book = book

    def ask(self, envelopes: Mapping[str, Envelope], timeout: float | None = None) -> Replies:
        """One question to each named silo. Who refuses, is late or answers nonsense is listed under `failures`."""
        patience = self.patience if timeout is None else timeout
        encoded: dict[int, bytes] = {}  # most questions are one object for all, which is encoded once
        for envelope in envelopes.values():
            if id(envelope.question) not in encoded:
                check(envelope.question)
                encoded[id(envelope.question)] = encode_question(envelope)
        place = _place(next(iter(envelopes.values()))) if envelopes else {}
        self.book({"asked": sorted(envelopes), **place})
        try:
            arrived = self.carry({name: encoded[id(e.question)] for name, e in envelopes.items()}, patience)
        except BaseException as error:
            for name in sorted(envelopes):
                self.book({"left_out": name, "why": f"The round was cut off ({type(error).__name__}).", **place})
            raise
        replies = Replies()
        for name in sorted(envelopes):
            data = arrived.get(name)
            try:
                reply = replies.answers[name] = self._accept(name, envelopes[name], data)
            except AnabranchError as error:
                why = replies.failures[name] = readable(str(error))
                if isinstance(error, NotFiniteError):
                    replies.unsound.add(name)
                self.book({"left_out": name, "why": why, **place})
            else:
                assert isinstance(data, bytes)
                self.book({"accepted": name, "kind": reply.kind, "answer": digest(data), **place})
        return replies

    def fused_mean(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None:
        """Nothing can be computed in one pass for silos that are apart."""
        return None

    def _accept(self, name: str, envelope: Envelope, data: bytes | BaseException | None) -> Message:
        if isinstance(data, TimeoutError):
            raise AnabranchError(f"Silo '{name}' did not answer in time.")
        if isinstance(data, BaseException) or data is None:
            raise AnabranchError(f"Silo '{name}' could not be asked: {data or 'nothing came back'}.")
        if not isinstance(data, bytes):  # whatever the engine's own encoding lets through
            raise MessageError(f"Silo '{name}' answered with a {type(data).__name__} instead of a message.")
        try:
            reply = decode(data)
            if isinstance(reply, Refused):
                raise (NotFiniteError if reply.error == NotFiniteError.__name__ else AnabranchError)(reply.sentence)
            expected = reply_type(type(envelope.question))
            if expected is not None and not isinstance(reply, expected):
                raise MessageError(f"'{envelope.question.kind}' was answered with a '{reply.kind}'.")
            check(reply, envelope.question)
        except MessageError as error:
            raise type(error)(f"The answer of silo '{name}' was refused: {error}") from error
        return reply


def _place(envelope: Envelope) -> dict[str, Any]:
    return {name: getattr(envelope, name) for name in ("run", "session", "round", "sequence")}
