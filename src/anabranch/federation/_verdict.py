"""Whether an aggregate can be used: known at once on a CPU, and on a GPU when it is asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.federation._finite import norms
from anabranch.federation._message import Message, numbers_of


class Verdict:
    """Says, as a truth value, whether all numbers of a reply are finite.

    On a GPU they are looked at when their turn comes: `bad`, which is 1.0 or 0.0, can be computed with right away, and
    only who asks for the truth value waits, until then and not for what was begun afterwards.
    """

    def __init__(self, reply: Message) -> None:
        total = _total(list(numbers_of(reply).values()))
        self.bad: Tensor = (~total.isfinite()).float()
        self._finite: bool | None = None
        if not total.is_cuda:
            self._finite = math.isfinite(float(total))
            return
        self._copy = torch.empty((), pin_memory=True)
        self._copy.copy_(self.bad, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(total.device))

    def __bool__(self) -> bool:
        if self._finite is None:
            self._copied.synchronize()
            self._finite = not bool(self._copy)
        return self._finite


def _total(numbers: list[Tensor]) -> Tensor:
    """The sum of all norms: finite exactly when every number is, short of overflow."""
    sums = norms(numbers)
    place = next((device for device in sums if device.type == "cuda"), torch.device("cpu"))
    return sum((part.to(place) for part in sums.values()), torch.zeros((), dtype=torch.float64, device=place))
