"""Privacy as a step between a silo's answer and the wire; no method knows of it.

A postprocessor runs inside the silo, on its own reply, with random numbers that only the silo can derive. It
needs each silo's own answer, so the local engine does not fuse the kinds of message that one applies to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from anabranch.errors import MessageError, UsageError
from anabranch.federation._halves import reply_type
from anabranch.federation._message import Envelope, Message, check, numbers_of, with_numbers
from anabranch.federation._silo import Silo


class Postprocessor(Protocol):
    """What may happen to a reply before it leaves."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of reply that it changes."""
        ...

    def __call__(self, silo: Silo, reply: Message) -> Message:
        """The reply as it leaves the silo."""
        ...


def guarded_answer(silo: Silo, envelope: Envelope, postprocessors: Iterable[Postprocessor]) -> Message:
    """The silo's answer as it may leave: computed, guarded, and checked as the other side will check it."""
    check(envelope.question)
    reply = silo.answer(envelope)
    expected = reply_type(type(envelope.question))
    if expected is not None and not isinstance(reply, expected):
        raise MessageError(f"Silo '{silo.name}' answered '{envelope.question.kind}' with a {type(reply).__name__}.")
    for postprocessor in postprocessors:
        if reply.kind in postprocessor.kinds:
            reply = postprocessor(silo, reply)
    check(reply, envelope.question)
    return reply


@dataclass(frozen=True)
class Clip:
    """Scales all floating-point numbers of a reply together so that their Euclidean norm is at most `norm`."""

    norm: float
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise UsageError(f"Clipping to a norm of {self.norm} is not possible; give a positive number.")

    def __call__(self, silo: Silo, reply: Message) -> Message:
        numbers = numbers_of(reply)
        total = torch.stack([tensor.double().norm() for tensor in numbers.values()]).norm()
        factor = min(1.0, self.norm / max(float(total), 1e-300))
        return with_numbers(reply, {name: tensor * factor for name, tensor in numbers.items()})


@dataclass(frozen=True)
class Noise:
    """Adds independent Gaussian noise of the given standard `deviation` to every floating-point number of a reply."""

    deviation: float
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise UsageError(f"Noise of deviation {self.deviation} is not possible; give zero or more.")

    def __call__(self, silo: Silo, reply: Message) -> Message:
        generator = silo.private_generator("noise", reply.kind)

        def noisy(tensor: Tensor) -> Tensor:
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            return tensor + (self.deviation * noise).to(tensor.device, tensor.dtype)

        return with_numbers(reply, {name: noisy(tensor) for name, tensor in numbers_of(reply).items()})
