"""Silo halves: which function answers which kind of question, registered where a method defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from torch import Tensor

from anabranch.federation._message import Message

if TYPE_CHECKING:
    from anabranch.federation._silo import Silo

Answer = Callable[["Silo", Any], Message]
FusedAnswer = Callable[[Sequence["Silo"], Any, Tensor], Message]
Beginning = Callable[[Sequence["Silo"], int], None]
A = TypeVar("A", bound=Answer)
F = TypeVar("F", bound=FusedAnswer)
B = TypeVar("B", bound=Beginning)

_ANSWERS: dict[type[Message], Answer] = {}
_FUSED: dict[type[Message], FusedAnswer] = {}
_BEGINNINGS: dict[type[Message], Beginning] = {}
_REPLIES: dict[Answer, type[Message]] = {}


def answers(kind: type[Message]) -> Callable[[A], A]:
    """Registers the silo half that answers this kind of question: `(silo, question) -> reply`."""

    def register(function: A) -> A:
        _ANSWERS[kind] = function
        return function

    return register


def answers_together(kind: type[Message]) -> Callable[[F], F]:
    """Registers a fused silo half: `(silos, question, weights) -> reply`, the weighted mean of the plain replies.

    It serves many silos of one machine in one pass and must agree with the plain half to float tolerance. It
    draws its random numbers from each silo's own generators, so that plain and fused runs see the same data.
    """

    def register(function: F) -> F:
        _FUSED[kind] = function
        return function

    return register


def begins(kind: type[Message]) -> Callable[[B], B]:
    """Registers what silos of one machine may begin before they are asked: `(silos, round) -> None`.

    It must not wait, and must not change any answer: only when it is computed.
    """

    def register(function: B) -> B:
        _BEGINNINGS[kind] = function
        return function

    return register


def reply_type(kind: type[Message]) -> type[Message] | None:
    """The kind of reply that the silo half for this kind of question declares."""
    half = _ANSWERS.get(kind)
    if half is None:
        return None
    if half not in _REPLIES:
        _REPLIES[half] = get_type_hints(half).get("return", Message)
    return _REPLIES[half]


def plain_answer(kind: type[Message]) -> Answer | None:
    """The half for this kind of question, if a method offers one."""
    return _ANSWERS.get(kind)


def fused_answer(kind: type[Message]) -> FusedAnswer | None:
    """The fused half for this kind of question, if a method offers one."""
    return _FUSED.get(kind)


def beginning(kind: type[Message]) -> Beginning | None:
    """What can be begun before this kind of question is asked, if a method offers it."""
    return _BEGINNINGS.get(kind)
