"""What `anabranch sample` shows: a bar while samples are drawn, what they took, what an interruption leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.cli._show import console
from anabranch.errors import AnabranchError
from anabranch.runs import Drawing, open_file, write_drawing


def write(drawing: Drawing, out: str, picture: Callable[..., bytes] | None, whose: str = "") -> None:
    """Draws the samples into the file or folder, and says what that took; `whose` says what they are samples of."""
    for sentence in drawing.notes:
        warn(sentence)
    file = open_file(out, drawing, picture)
    with file, _bar(drawing, file.start) as watch:
        try:
            written = write_drawing(drawing, file, watch)
        except (KeyboardInterrupt, AnabranchError):
            warn(file.left)
            raise
    if not written.drawn:
        typer.echo(f"All {drawing.count} samples were there already: {out}")
        return
    words = f"{drawing.count} sample{'' if drawing.count == 1 else 's'}{whose}"
    if written.drawn < drawing.count:
        words += f", {drawing.count - written.drawn} of which were there already,"
    words += f" with {written.evaluations:.10g} function evaluation{'' if written.evaluations == 1 else 's'}"
    if drawing.shape or written.seconds >= 1:  # of a few points it says nothing
        rate = written.drawn / written.seconds
        words += f" each, {rate:.0f} samples a second" if rate >= 10 else f" each, {rate:.2g} samples a second"
    typer.echo(f"{words}: {out}")


def warn(sentence: str) -> None:
    """A sentence beside the results."""
    console.print(f"[yellow]{escape(sentence)}[/yellow]", highlight=False)


@contextmanager
def _bar(drawing: Drawing, start: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, where there is more than one batch to wait for."""
    if not console.is_terminal or drawing.count - start <= drawing.batch:
        yield lambda done: None
        return
    columns = (TextColumn("[bold]samples"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("samples", total=drawing.count, completed=start)
        yield lambda done: bar.update(task, completed=done)
