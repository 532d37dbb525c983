"""What people see: progress bars, tables, sentences."""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from anabranch.errors import AnabranchError, UsageError
from anabranch.federation import Ranks
from anabranch.recipes import AnyCell, Check
from anabranch.runs import RunFolder

console = Console(stderr=True)  # progress and sentences; standard output belongs to results
OFTEN, SELDOM = 0.5, 60.0  # seconds between two looks at a run, on a terminal and in a file; a GPU waits for each
Command = TypeVar("Command", bound=Callable[..., Any])


def sentences(command: Command) -> Command:
    """Turns errors into a sentence and an exit code: 2 for wrong usage, 1 for failure, 130 for Ctrl-C.

    Its help has no line breaks within a paragraph, so that lines are as long as the terminal is wide.
    """

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _say_warning
                return command(*args, **options)
        except AnabranchError as error:
            _say_error(error)
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error

    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    wrapped.__doc__ = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    return wrapped  # type: ignore[return-value]


def _say_error(error: AnabranchError) -> None:
    """An error as its sentence; of several processes only one has it to say."""
    ranks = Ranks.here()
    if ranks.speaks():
        whose = "" if ranks.first else f"Rank {ranks.number}: "
        console.print(f"[red]{whose}{escape(str(error))}[/red]", highlight=False)


def _say_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """A warning as its sentence; where in the code it arose helps nobody here."""
    if Ranks.here().first:
        console.print(f"[yellow]{escape(str(message))}[/yellow]", highlight=False)


@contextmanager
def waiting(sentence: str) -> Iterator[Callable[[str], None]]:
    """A spinner beside what is waited for; what is told changes it, or without a terminal becomes a line."""
    with console.status(sentence) as spinner:

        def tell(other: str) -> None:
            if console.is_terminal:
                spinner.update(escape(other))
            else:
                console.print(escape(other), highlight=False)

        yield tell


@contextmanager
def cell_watch(title: str) -> Iterator[Callable[[Sequence[AnyCell], Sequence[AnyCell]], None]]:
    """A progress bar for many runs: rounds of all cells together, and which are running. Without a terminal, lines.

    Of several processes only rank 0 shows one."""
    if not Ranks.here().first:
        yield lambda cells, running: None
        return
    if not console.is_terminal:
        yield CellLines(title).watch
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[facts]}"), TimeRemainingColumn())
    bar = Progress(TextColumn("[bold]{task.description}"), *columns, console=console)
    finished: set[str] = set()

    def watch(cells: Sequence[AnyCell], running: Sequence[AnyCell]) -> None:
        for cell in cells:
            if cell.name not in finished and RunFolder(cell.path).finished:
                finished.add(cell.name)
        partial = sum(cell.share() for cell in running if cell.name not in finished)
        now = ", ".join(cell.title for cell in running)
        facts = f"{len(finished)}/{len(cells)} cells" + (f" · {now}" if now else "")
        bar.update(task, total=len(cells), completed=len(finished) + partial, facts=facts)

    with bar:
        task = bar.add_task(title, total=None, facts="")
        yield watch


class CellLines:
    """For a file that is read while it grows: a line where a cell begins or ends, and now and then how far each is."""

    def __init__(self, title: str) -> None:
        self.title, self.shown = title, time.monotonic()
        self.begun: dict[str, float] | None = None
        self.finished: set[str] = set()
        self.failed: set[str] = set()

    def watch(self, cells: Sequence[AnyCell], running: Sequence[AnyCell]) -> None:
        """To be called about once a second, with all cells and those now running."""
        now, before = time.monotonic(), self.finished
        self.finished = {cell.name for cell in cells if cell.name in before or RunFolder(cell.path).finished}
        if self.begun is None:
            self.begun = {}
            done = f", {len(self.finished)} of them finished before" if self.finished else ""
            self._say(f"{len(cells)} cell{'s' if len(cells) > 1 else ''}{done}")
            before = self.finished
        for cell in running:
            if cell.name not in self.begun and cell.name not in self.finished:
                self.begun[cell.name] = now
                self._say(f"{cell.name} begins")
        for name in sorted(self.finished - before):
            minutes = (now - self.begun.pop(name, now)) / 60
            self._say(f"{name} finished after {minutes:.1f} min, {len(self.finished)}/{len(cells)} cells")
        for name in self.begun.keys() - self.failed - {cell.name for cell in running}:
            self.failed.add(name)
            self._say(f"{name} failed; the reason follows at the end")
        if now - self.shown >= SELDOM:
            for cell in running:
                self._say(f"{cell.name} {100 * cell.share():.0f} %")

    def _say(self, sentence: str) -> None:
        self.shown = time.monotonic()
        console.print(escape(f"{self.title}: {sentence}"), highlight=False, soft_wrap=True)


def print_table(lines: Sequence[Sequence[str]], title: str, names: int = 1) -> None:
    """A table on standard output; its first line is the header. Figures stand to the right, names to the left.

    The first `names` columns are names, whatever they look like.
    """
    from anabranch.report import figure_columns

    table = Table(title=title, title_justify="left")
    for name, figures in zip(lines[0], figure_columns(lines, names), strict=True):
        table.add_column(escape(name), justify="right" if figures else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*(escape(cell) for cell in line))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140).print(table)


def print_checks(checks: Sequence[Check]) -> None:
    """The checks, one a line."""
    table = Table(title="Checks", title_justify="left")
    for name in ("figure", "value", "limit", ""):
        table.add_column(name, justify="right" if name in ("value", "limit") else "left")
    for check in checks:
        value = "missing" if check.value is None else f"{check.value:.4g}"
        verdict = "ok" if check.ok else "FAILS"
        table.add_row(check.name, value, f"{check.limit:.4g}", verdict, style=None if check.ok else "red")
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140).print(table)
