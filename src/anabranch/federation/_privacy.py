"""Privacy as a step between a silo's answer and the wire; no method knows of it.

A postprocessor runs inside the silo, on its own reply, with random numbers that only the silo can derive. It
needs each silo's own answer, so the local engine does not fuse the kinds of message that one applies to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.federation._message import Message, tensors_of
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


@dataclass(frozen=True)
class Clip:
    """Scales all floating-point numbers of a reply together so that their Euclidean norm is at most `norm`."""

    norm: float
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise UsageError(f"Clipping to a norm of {self.norm} is not possible; give a positive number.")

    def __call__(self, silo: Silo, reply: Message) -> Message:
        total = torch.stack([t.double().norm() for t in tensors_of(reply).values() if t.is_floating_point()]).norm()
        factor = min(1.0, self.norm / max(float(total), 1e-300))
        return change(reply, lambda t: t * factor)


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

        return change(reply, noisy)


def change(message: Message, change_tensor: Callable[[Tensor], Tensor]) -> Message:
    """The message with every floating-point tensor changed."""
    changed: dict[str, Tensor | dict[str, Tensor]] = {}
    for name, value in vars(message).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            changed[name] = change_tensor(value)
        elif isinstance(value, dict):
            changed[name] = {k: change_tensor(t) if t.is_floating_point() else t for k, t in value.items()}
    return replace(message, **changed)  # type: ignore[type-var]
