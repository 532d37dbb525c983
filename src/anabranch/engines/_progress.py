"""Progress of a run in another process, read from its folder."""

from __future__ import annotations

import json
import os
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
        self._file = 0
        self._place = 0

    def look(self) -> None:
        """Tells what is new. A run that went back has written another file; of what that repeats, only the last round
        is told."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            number = os.fstat(file.fileno()).st_ino
            again, self._file = self._file not in (0, number), number
            file.seek(0 if again else self._place)
            lines = [line for line in file if line.endswith(b"\n")]  # the last one may still be being written
            self._place = (0 if again else self._place) + sum(map(len, lines))
        for line in lines[-1:] if again else lines:
            self._tell(json.loads(line))

    def _tell(self, record: dict[str, Any]) -> None:
        fixed = {"round", "rounds", "phase", "seconds", "bytes_up", "bytes_down", "failures"}
        metrics = {name: value for name, value in record.items() if name not in fixed}
        progress = Progress(record["round"], record["rounds"], record["phase"], metrics, record.get("failures", {}))
        for way in ("up", "down"):
            self.seen.ledger.counts["all", "all", way] = [0, record[f"bytes_{way}"]]
        self.notes.progress(progress, self.seen)  # type: ignore[arg-type]
