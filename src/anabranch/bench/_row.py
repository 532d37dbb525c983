"""What a benchmark says: one line a comparison, and a check for each line with a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.recipes import Check


@dataclass(frozen=True)
class Row:
    """One line: milliseconds there and here, the `value` that is judged (mostly their ratio), and its limit.

    `rule` is "≥" or "≤"; without a limit a line only informs.
    """

    what: str
    peer: float | None = None
    ours: float | None = None
    value: float | None = None
    limit: float | None = None
    rule: str = "≥"

    @property
    def ok(self) -> bool | None:
        """Whether the limit holds; None where there is none. A value that is missing holds no limit."""
        if self.limit is None:
            return None
        if self.value is None:
            return False
        return self.value >= self.limit if self.rule == "≥" else self.value <= self.limit

    def record(self) -> dict[str, Any]:
        """As it is printed in JSON."""
        return {
            "what": self.what,
            "peer_ms": self.peer,
            "ours_ms": self.ours,
            "ratio": self.value,
            "rule": self.rule,
            "limit": self.limit,
            "ok": self.ok,
        }

    def cells(self) -> list[str]:
        """As it is printed in a table."""
        limit = "" if self.limit is None else f"{self.rule} {self.limit:g}"
        verdict = {None: "", True: "ok", False: "FAILS"}[self.ok]
        return [self.what, _number(self.peer), _number(self.ours), _number(self.value, 2), limit, verdict]


HEADER = ["what", "peer ms", "ours ms", "ratio", "limit", ""]


def compared(what: str, peer: float | None, ours: float, limit: float | None = None) -> Row:
    """A line whose value is how many times faster we are: the peer's time over ours. Without a peer there is neither a
    value nor a limit.

    >>> row = compared("a step", peer=3.0, ours=2.0, limit=1.2)
    >>> row.value, row.ok
    (1.5, True)
    """
    return Row(what, ours=ours) if peer is None else Row(what, peer, ours, peer / ours, limit)


@dataclass
class Measured:
    """All lines of a run; a `note` says why there is no peer among them."""

    rows: list[Row] = field(default_factory=list)
    note: str = ""

    @property
    def checks(self) -> list[Check]:
        """The lines that have a limit."""
        return [Check(r.what, r.value, r.limit, bool(r.ok)) for r in self.rows if r.limit is not None]

    @property
    def ok(self) -> bool:
        """Whether every limit holds."""
        return all(check.ok for check in self.checks)

    def record(self) -> Mapping[str, Any]:
        """As it is printed in JSON."""
        found = {"rows": [row.record() for row in self.rows], "checks": [check.record() for check in self.checks]}
        return {**found, "note": self.note} if self.note else found

    def lines(self) -> list[list[str]]:
        """As a table, header first."""
        return [HEADER, *(row.cells() for row in self.rows)]


def _number(value: float | None, places: int = 3) -> str:
    return "" if value is None else f"{value:.{places}f}"
