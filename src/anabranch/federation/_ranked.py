"""The local engine over several processes: each answers for its share of the silos, and all know all answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anabranch.errors import ExhaustedError, UsageError
from anabranch.federation._encoding import assemble, head
from anabranch.federation._exhausted import exhausted
from anabranch.federation._halves import fused_answer
from anabranch.federation._local import LocalEngine
from anabranch.federation._message import (
    WIRE_DTYPES,
    Envelope,
    Message,
    numbers_of,
    only_numbers,
    tensors_of,
    with_numbers,
)
from anabranch.federation._privacy import Postprocessor
from anabranch.federation._ranks import Ranks
from anabranch.federation._replies import Replies
from anabranch.federation._silo import Silo

FINE, FAILED, EXHAUSTED = range(3)  # how a pass went; the worst of all processes counts
DTYPES = {code: dtype for dtype, (code, _) in WIRE_DTYPES.items()}


class RankedEngine(LocalEngine):
    """Asks silos of which every process of `ranks` holds a share (`mine`); every process runs the same server.

    A fused mean is the sum of what each process finds for its own silos, with their weights among all. All other
    answers, and failures, are handed to every process. So servers stay in step: each sees the same numbers, bit by bit.
    All silos are given to every process, but only its own are asked, and need their points on its device.
    """

    def __init__(
        self, silos: Sequence[Silo], ranks: Ranks, fused: bool = True, postprocessors: Sequence[Postprocessor] = ()
    ) -> None:
        super().__init__(silos, fused, postprocessors)
        if ranks.count > len(self.silos):
            raise UsageError(
                f"{ranks.count} processes were started for {len(self.silos)} silos; each needs a silo of its own."
                f" Start {len(self.silos)} or fewer."
            )
        self.ranks = ranks
        self.mine = ranks.share(self.silos)

    @property
    def device(self) -> torch.device:
        """Where this process holds its silos' points; the CPU where they differ."""
        found = {self.silos[name].device for name in self.mine}
        return found.pop() if len(found) == 1 else torch.device("cpu")

    def ask(self, envelopes: Mapping[str, Envelope], timeout: float | None = None) -> Replies:
        """As in one process. What silos answer elsewhere arrives as from a wire, and nothing is lost in that."""
        own, outcome = Replies(), FINE
        try:
            own = super().ask({name: envelopes[name] for name in self.mine if name in envelopes}, timeout)
        except ExhaustedError:
            outcome = EXHAUSTED
        parts = self.ranks.gather(bytes([outcome]) + own.pack())
        if any(part[0] == EXHAUSTED for part in parts):
            raise exhausted(next(iter(envelopes.values())).question.kind)
        del parts[self.ranks.number]
        return Replies.of_all([own, *(Replies.unpack(part[1:], self.device) for part in parts)])

    def weighted_sum(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None:
        """The sum over all processes; None where one of them fails, or where a reply holds more than can be added."""
        if fused_answer(type(envelope.question)) is None:
            return None
        weight = dict(zip(names, share, strict=True))
        own = [name for name in self.mine if name in weight]
        part, outcome = None, FINE
        try:
            if own:
                part = super().weighted_sum(envelope, own, [weight[name] for name in own])
                outcome = FAILED if part is None or not only_numbers(part) else FINE
        except ExhaustedError:
            outcome = EXHAUSTED
        worst = self.ranks.largest(outcome)
        if worst == EXHAUSTED:
            raise exhausted(envelope.question.kind)
        return self._summed(part, names) if worst == FINE else None

    def begin(self, question: Message, names: Sequence[str], number: int) -> None:
        """As in one process, for the silos of this one."""
        if own := [name for name in self.mine if name in names]:
            super().begin(question, own, number)

    def _summed(self, part: Message | None, names: Sequence[str]) -> Message:
        places = {name: place for place, name in enumerate(self.silos)}
        if len({places[name] % self.ranks.count for name in names}) < self.ranks.count:
            forms = self.ranks.gather(b"" if part is None else _form(part))
            part = part or _nothing(next(form for form in forms if form), self.device)
        assert part is not None
        numbers = numbers_of(part)
        return with_numbers(part, dict(zip(numbers, self.ranks.sum(list(numbers.values())), strict=True)))


def _form(message: Message) -> bytes:
    """What a process without silos in a round must know to add nothing: names, shapes and types, no numbers."""
    blank = with_numbers(message, {name: torch.zeros_like(tensor) for name, tensor in numbers_of(message).items()})
    tensors = {
        name: (list(tensor.shape), WIRE_DTYPES[tensor.dtype][0], tensor.is_cuda)
        for name, tensor in tensors_of(blank).items()
    }
    return json.dumps({"head": head(blank), "tensors": tensors}).encode()


def _nothing(form: bytes, device: torch.device) -> Message:
    """A reply of that form that is zero everywhere."""
    read: dict[str, Any] = json.loads(form)
    tensors = {
        name: torch.zeros(shape, dtype=DTYPES[code], device=device if on_gpu else "cpu")
        for name, (shape, code, on_gpu) in read["tensors"].items()
    }
    return assemble(read["head"], tensors)
