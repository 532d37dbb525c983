"""The byte ledger: what went over the wire, each way, per silo and kind of message."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: `down` from the server to the silo, `up` back."""

    silo: str
    kind: str
    direction: str
    messages: int
    bytes: int


@dataclass
class Ledger:
    """Counts messages and bytes; `local` engines count what an encoding would have carried."""

    counts: dict[tuple[str, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, silo: str, kind: str, direction: str, size: int) -> None:
        """One more message of `size` bytes, `direction` being "down" or "up"."""
        count = self.counts[silo, kind, direction]
        count[0] += 1
        count[1] += size

    def bytes(self, direction: str | None = None, silo: str | None = None) -> int:
        """Bytes in all, or in one direction, or of one silo."""
        return sum(
            count[1]
            for (name, _, way), count in self.counts.items()
            if direction in (None, way) and silo in (None, name)
        )

    def entries(self) -> list[Entry]:
        """Every line, sorted."""
        return [Entry(*key, *count) for key, count in sorted(self.counts.items())]

    def state(self) -> list[list[str | int]]:
        """What a checkpoint keeps."""
        return [[*key, *count] for key, count in sorted(self.counts.items())]

    def load(self, state: list[list[str | int]]) -> None:
        """Continues from a checkpoint."""
        self.counts.clear()
        for silo, kind, direction, messages, size in state:
            self.counts[str(silo), str(kind), str(direction)] = [int(messages), int(size)]
