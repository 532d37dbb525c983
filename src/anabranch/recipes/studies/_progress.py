"""How far a cell is, for whoever waits for it: a small file that a busy cell writes and `reproduce` reads."""

from __future__ import annotations

import time
from contextlib import suppress

from anabranch.errors import AnabranchError, RunFolderError
from anabranch.recipes._study import StudyCell
from anabranch.runs import RunFolder

FILE = "progress.json"
EVERY = 2.0  # seconds


class Told:
    """Notes the share of a cell that is done: `parts` of equal weight, one after the other. A context manager.

    The file goes when the cell ends; one that a killed process has left goes when the cell begins anew. A file that
    cannot be written stops nobody.
    """

    def __init__(self, cell: StudyCell, parts: int = 1) -> None:
        self.folder, self.parts = RunFolder(cell.folder), parts
        self.done, self._last = 0, -EVERY

    def __enter__(self) -> Told:
        self._forget()
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def part(self) -> None:
        """One more part is done."""
        self.done += 1
        self._write(self.done / self.parts)

    def within(self, share: float) -> None:
        """So much of the next part is done; written now and then."""
        if time.monotonic() - self._last >= EVERY:
            self._write((self.done + share) / self.parts)

    def _write(self, share: float) -> None:
        self._last = time.monotonic()
        with suppress(AnabranchError, OSError):
            self.folder.write_json(FILE, {"share": share})

    def _forget(self) -> None:
        with suppress(OSError):
            (self.folder.path / FILE).unlink(missing_ok=True)


def share(cell: StudyCell) -> float:
    """How much of a cell is done that another process is busy with."""
    try:
        found = RunFolder(cell.folder).read_json(FILE)
    except RunFolderError:  # not begun, or ended
        return 0.0
    return float(found.get("share", 0.0))
