"""Where a run tells people what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.federation import Federation, Ranks
from anabranch.methods.ffm import Progress
from anabranch.runs._clock import Looks

Listener = Callable[[Progress, Federation], None]


@dataclass
class Notes:
    """Where a run tells people what it does: each round, and now and then a sentence.

    `pause` is asked after every checkpoint; when it says so, the run stops there, to be continued. `looks` are taken at
    the server itself, in a simulation or elsewhere, while no time counts. When rounds are over, `judged` is told how
    many evaluations of the velocity are done, of how many: first 0 of 0, and no more than that where nobody counts.
    """

    progress: Listener = lambda progress, federation: None
    say: Callable[[str], None] = lambda sentence: None
    pause: Callable[[Progress, Federation], bool] = lambda progress, federation: False
    looks: Looks = field(default_factory=Looks)
    judged: Callable[[int, int], None] = lambda done, total: None

    def of(self, ranks: Ranks) -> Notes:
        """These; of several processes all but rank 0 say nothing, and only stand by where it looks."""
        return self if ranks.first else Notes(looks=Looks(self.looks.after, unit=self.looks.unit))
