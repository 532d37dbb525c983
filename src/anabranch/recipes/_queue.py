"""Which cells of a recipe are still to be run, where other processes may be filling the same folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

AGAIN = 5.0  # seconds until a cell that another process had is asked for again


class Runnable(Protocol):
    """As much of a cell as a queue knows."""

    def finished(self) -> bool: ...


T = TypeVar("T", bound=Runnable)


class Queue(Generic[T]):
    """Cells in their order. One that another process is at work on comes last, and is asked for again now and then,
    until that process has finished it, or has ended without."""

    def __init__(self, cells: Sequence[T]) -> None:
        self.own, self.with_others = list(cells), list[T]()
        self._asked = 0.0

    def __bool__(self) -> bool:
        return bool(self.own or self.with_others)

    def first(self) -> T | None:
        """The next cell to be run, if one can be run now; what was finished meanwhile is left out."""
        for cells in (self.own, self.with_others):
            while cells and cells[0].finished():
                cells.pop(0)
        if self.own:
            return self.own[0]
        return self.with_others[0] if self.with_others and time.monotonic() - self._asked >= AGAIN else None

    def take(self) -> T:
        """That cell, which is the caller's from now on."""
        return (self.own or self.with_others).pop(0)

    def met(self, cell: T) -> None:
        """Another process was found at work on a cell that was taken."""
        self.with_others.append(cell)
        self._asked = time.monotonic()
