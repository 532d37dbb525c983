"""What carries questions to silos, as a federation sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anabranch.federation._message import Envelope, Message
from anabranch.federation._replies import Replies


class Engine(Protocol):
    """What carries questions to silos. Every engine passes one common contract suite."""

    @property
    def names(self) -> list[str]: ...
    def ask(self, envelopes: Mapping[str, Envelope], timeout: float | None = None) -> Replies: ...
    def fused_mean(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None: ...
