"""How long a run has trained, and who looks at it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.ffm import FlowServer, Progress

Server = FlowServer | CompositionServer


@dataclass(frozen=True)
class Looks:
    """Who looks at a run while it trains: `look(mark, server, progress, seconds)` for every mark of `after`.

    Marks are seconds of training: a look comes with the first round that ends at or behind its mark, before that round
    is saved. It must leave the server as it is. What it takes does not count as training.
    """

    after: Sequence[float] = ()
    look: Callable[[float, Server, Progress, float], None] = lambda mark, server, progress, seconds: None


class Clock:
    """Seconds of training, `earlier` ones included, without those in which it was stopped."""

    def __init__(self, earlier: float = 0.0) -> None:
        self._before = earlier
        self._since: float | None = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far. A GPU may still be at work on what it was given."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    @contextmanager
    def stopped(self) -> Iterator[float]:
        """Within, no time counts; gives the seconds until all that was begun is done."""
        _finish()
        self._before, self._since = self.seconds, None
        try:
            yield self._before
        finally:
            _finish()
            self._since = time.monotonic()


def _finish() -> None:
    """Waits for the GPU: its work is begun, not done, when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
