"""Ctrl-C during training: the round in progress ends well, and whoever pressed it learns at once that it will."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.runs._folder import RunFolder


@contextmanager
def interrupts(tell: Callable[[], None]) -> Iterator[threading.Event]:
    """Ctrl-C sets the event and has `tell` called within the instant; a second one stops at once. So does SIGTERM, by
    which schedulers and containers end a program.

    `tell` runs in a thread of its own: a signal handler may have interrupted somebody who holds the console.
    """
    event, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        event.set()

    def watch() -> None:
        event.wait()
        if not over.is_set():
            tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        over.set()
        event.set()  # nothing to tell any more: the watcher ends
        watcher.join(timeout=1.0)


def stopping(folder: RunFolder) -> str:
    """What happens after the first Ctrl-C, and what a second one would cost."""
    saved = folder.checkpoints()
    where = f"goes on from round {saved[-1]}" if saved else "starts the run over"
    return (
        "Stopping: this round is finished first, and saved. Ctrl-C once more stops at once and loses it;"
        f" {folder.again} then {where}."
    )
