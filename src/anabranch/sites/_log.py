"""The audit log, to be read by people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.federation import read_log
from anabranch.sites._folder import AUDIT_FILE, check_folder


@dataclass(frozen=True)
class LogView:
    """Entries of the log, and totals over all that were chosen, shown or not."""

    entries: list[dict[str, Any]]
    lines: int
    questions: int
    answered: int
    repeated: int
    refused: int
    bytes_in: int
    bytes_out: int

    def rows(self) -> list[list[str]]:
        """The entries as a table with a header."""
        header = ["time", "what happened", "run", "round", "received", "sent"]
        return [header, *([_cell(entry, name) for name in _COLUMNS] for entry in self.entries)]

    def totals(self) -> str:
        """All in one sentence."""
        return (
            f"{self.questions} questions ({self.bytes_in} bytes): {self.answered} answered, {self.repeated} repeated,"
            f" {self.refused} refused; {self.bytes_out} bytes sent."
        )


_COLUMNS = ("time", "event", "run", "round", "bytes_in", "bytes_out")


def view_log(folder: Path, run: str = "", kind: str = "", refused: bool = False, last: int = 0) -> LogView:
    """The log of a site's folder. Its chain is verified first, all of it: a DataError names the first wrong line.

    `run` is any part of a run's name; `last` shows only so many entries (0: all).
    """
    check_folder(folder)
    lines = list(read_log(folder / AUDIT_FILE))
    chosen = [
        entry
        for entry in lines
        if run in entry.get("run", "")
        and (not kind or entry.get("kind") == kind)
        and (not refused or entry["verdict"] == "refused")
    ]
    count = {
        verdict: sum(entry["verdict"] == verdict for entry in chosen) for verdict in ("answered", "repeated", "refused")
    }
    sent = {way: sum(entry[way] for entry in chosen) for way in ("bytes_in", "bytes_out")}
    return LogView(chosen[-last:] if last else chosen, len(lines), len(chosen), **count, **sent)


def _cell(entry: dict[str, Any], name: str) -> str:
    if name != "event":
        return str(entry.get(name, ""))
    shapes = [f"{key} {shape}" for key, shape in entry.get("shapes", {}).items()]
    more = f" and {len(shapes) - 2} more" if len(shapes) > 2 else ""
    what = entry.get("sentence") or ", ".join(shapes[:2]) + more
    return f"{entry.get('kind', 'bytes')} {entry['verdict']}" + (f": {what}" if what else "")
