"""A bar for what takes a known number of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.cli._show import console


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be called after each round, with its number and that of all rounds."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console)

    def watch(number: int, total: int) -> None:
        bar.update(task, completed=number, total=total)

    with bar:
        task = bar.add_task(escape(title), total=None)
        yield watch
