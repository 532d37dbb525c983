"""What a process that works on cells owes the one that started it: its sentences, and to end with it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from multiprocessing.queues import SimpleQueue
from typing import Any


def begin_worker(parent: int, said: SimpleQueue[str]) -> None:
    """Called in a worker before its first cell: warnings go to the parent, who knows how to show them."""

    def say(message: Warning | str, *place: Any, **more: Any) -> None:
        said.put(str(message))

    warnings.showwarning = say
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def pass_on(said: SimpleQueue[str]) -> None:
    """Warns here of what workers have said by now."""
    while not said.empty():
        warnings.warn(said.get(), stacklevel=2)


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is killed; left to itself it would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
