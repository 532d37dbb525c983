"""Progress of a run in another process, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.federation import Ledger
from anabranch.methods.ffm import Progress
from anabranch.runs import Notes


@dataclass
class _Seen:
    """As much of a federation as a progress bar shows."""

    names: list[str]
    ledger: Ledger


class Follower:
    """Tells `notes` of every round that appears in the folder's metrics.jsonl."""

    def __init__(self, path: Path, notes: Notes, names: Sequence[str]) -> None:
        self.path = path / "metrics.jsonl"
        self.notes = notes
        self.seen = _Seen(list(names), Ledger())
        self.rounds = 0
        self._place = 0

    def look(self) -> None:
        """Reads what is new. A file that became shorter was written anew by a run that went back."""
        if not self.path.exists():
            return
        if self.path.stat().st_size < self._place:
            self._place = 0
        with self.path.open() as file:
            file.seek(self._place)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._place = file.tell()
                self._tell(json.loads(line))

    def _tell(self, record: dict[str, Any]) -> None:
        fixed = {"round", "rounds", "phase", "seconds", "bytes_up", "bytes_down", "failures"}
        metrics = {name: value for name, value in record.items() if name not in fixed}
        progress = Progress(record["round"], record["rounds"], record["phase"], metrics, record.get("failures", {}))
        for way in ("up", "down"):
            self.seen.ledger.counts["all", "all", way] = [0, record[f"bytes_{way}"]]
        self.notes.progress(progress, self.seen)  # type: ignore[arg-type]
