"""What a process that works on cells owes the one that started it: its sentences, and to end with it."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def begin_worker(parent: int, folder: str) -> None:
    """Called in a worker before its first cell: warnings go to the parent, who knows how to show them.

    Through a file of the worker's own, so that none waits for another, whoever is killed and whenever.
    """
    place = Path(folder) / str(os.getpid())

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        with suppress(OSError), place.open("a") as file:  # what cannot be told ends no cell
            file.write(json.dumps(str(message)) + "\n")

    warnings.showwarning = say
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


@dataclass
class Said:
    """What workers have written into a folder, as far as it was passed on."""

    folder: Path
    _read: dict[Path, int] = field(default_factory=dict)

    def pass_on(self) -> None:
        """Warns here of what workers have said since."""
        for place in sorted(self.folder.glob("*")):  # of a folder that was swept away: none
            lines = place.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last one may be on its way
            read, self._read[place] = self._read.get(place, 0), len(whole)  # once, also where a warning is an error
            for line in whole[read:]:
                warnings.warn(json.loads(line), stacklevel=3)


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is killed; left to itself it would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
