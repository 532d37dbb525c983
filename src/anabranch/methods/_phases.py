"""What every server half is: phases of rounds, one after the other, that can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from torch import Tensor

from anabranch.federation import Federation


@dataclass(frozen=True)
class Phase:
    """A stretch of rounds: `step` is called with 1, 2, … and returns that round's metrics."""

    name: str
    rounds: int
    step: Callable[[int], dict[str, float | Tensor]]


@dataclass(frozen=True)
class Progress:
    """One finished round: its number and the total, the phase it belongs to, its metrics, who failed and why."""

    round: int
    rounds: int
    phase: str
    metrics: dict[str, float | Tensor]
    failures: dict[str, str] = field(default_factory=dict)


class Phased:
    """A server half with `phases`. A step notes in `failures` who was left out of it, and why."""

    federation: Federation
    phases: list[Phase]
    failures: dict[str, str]

    @property
    def rounds(self) -> int:
        """All rounds, of all phases."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The first and the last round of every phase that has any."""
        ends = list(accumulate(phase.rounds for phase in self.phases))
        return [(end - phase.rounds + 1, end) for phase, end in zip(self.phases, ends, strict=True) if phase.rounds]

    def run(self, done: int = 0) -> Iterator[Progress]:
        """Trains from after round `done` to the end, yielding after every round."""
        start = 0
        for phase in self.phases:
            for number in range(max(1, done - start + 1), phase.rounds + 1):
                self.failures = {}
                self.federation.start_round(start + number)
                metrics = phase.step(number)
                yield Progress(start + number, self.rounds, phase.name, metrics, self.failures)
            start += phase.rounds
