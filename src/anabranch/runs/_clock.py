"""How long a run has trained, and who looks at it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from anabranch.federation import Ranks
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.ffm import FlowServer, Progress
from anabranch.runs._config import Config

Server = FlowServer | CompositionServer


@dataclass(frozen=True)
class Looks:
    """Who looks at a run while it trains: `look(mark, server, progress, seconds)` for every mark of `after`.

    Marks are seconds of training or, by their `unit`, rounds of the flow, without those that come before it. A look
    comes with the first round that ends at or behind its mark, before that round is saved. It must leave the server as
    it is. What it takes does not count as training.
    """

    after: Sequence[float] = ()
    look: Callable[[float, Server, Progress, float], None] = lambda mark, server, progress, seconds: None
    unit: Literal["seconds", "rounds"] = "seconds"


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


class Budget:
    """The minutes that a run may train, if they are limited. What comes before the flow is always finished, and counts.

    A run that goes on has `records`, the rounds that it logged.
    """

    def __init__(self, config: Config, server: Server, records: Sequence[dict[str, Any]]) -> None:
        self._limit, self._server = 60 * config.run.minutes, server
        self._before = server.rounds - server.phases[-1].rounds
        self._begun = max((r.get("seconds", 0.0) for r in records if r["round"] <= self._before), default=0.0)

    def __bool__(self) -> bool:
        return self._limit > 0

    def spend(self, number: int, seconds: float) -> bool:
        """Says whether they are used up after round `number`; and to the flow, how much of its own time is."""
        if number <= self._before:
            self._begun = seconds
        own = self._limit - self._begun
        if isinstance(self._server, FlowServer):
            self._server.spend(min(1.0, (seconds - self._begun) / own) if own > 0 else 1.0)
        return number > self._before and self._limit <= seconds


class Looking:
    """The looks at a run that are still to come, where it goes on after `done` rounds and `earlier` seconds."""

    def __init__(self, looks: Looks, config: Config, server: Server, done: int, earlier: float, ranks: Ranks) -> None:
        self.looks, self.server, self.ranks = looks, server, ranks
        self._before = server.rounds - server.phases[-1].rounds
        self._minutes = config.run.minutes
        reached = done - self._before if looks.unit == "rounds" else earlier
        self.due = sorted(mark for mark in looks.after if mark > reached)

    def take(self, progress: Progress, clock: Clock, over: bool) -> None:
        """Those that a round brings, after which training may be `over`; the clock stands meanwhile."""
        while self.due and self._now(self.due[0], progress, clock, over):
            if self.ranks.count > 1:
                self.server.state()  # whatever is still to be asked of silos, all must ask
            with clock.stopped() as seconds:
                self.looks.look(self.due.pop(0), self.server, progress, seconds)

    def _now(self, mark: float, progress: Progress, clock: Clock, over: bool) -> bool:
        if self.looks.unit == "rounds":  # which all processes count alike
            return progress.round - self._before >= mark
        at_the_end = 0 < 60 * self._minutes <= mark  # at the flow that the run ends with, not at one a moment before
        return self.ranks.decided(clock.seconds >= mark and (over or not at_the_end))


def _finish() -> None:
    """Waits for the GPU: its work is begun, not done, when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
