"""One run as people see it: a bar that moves with its rounds, or lines in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from anabranch.cli._show import OFTEN, SELDOM, console
from anabranch.federation import Federation, Ranks
from anabranch.methods.ffm import Progress as Round
from anabranch.runs import Notes


@contextmanager
def training_notes(title: str) -> Iterator[Notes]:
    """Round, phase, loss, silos answering, bytes, time left, and then how far it is judged. Without a terminal, lines.

    Of several processes only rank 0 shows them."""
    if not Ranks.here().first:
        yield Notes()
    elif not console.is_terminal:
        lines = _Lines(title)
        yield Notes(lines.show, _say, judged=lines.judged)
    else:
        bar = _Bar(title)
        try:
            yield Notes(bar.show, _say, judged=bar.judged)
        finally:
            bar.leave()


class _Bar:
    """On a terminal. What it showed of the last round is what stays."""

    def __init__(self, title: str) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[facts]}"), TimeRemainingColumn())
        self.bar = Progress(TextColumn("[bold]{task.description}"), *columns, console=console)
        self.task = self.bar.add_task(title, total=None, facts="")
        self.shown, self.rounds, self.facts = 0.0, 0, ""
        self.bar.start()

    def show(self, progress: Round, federation: Federation) -> None:
        """A round is over."""
        _tell_failures(progress)
        if self._soon() and progress.round < progress.rounds:
            return
        self.shown, self.rounds, self.facts = time.monotonic(), progress.rounds, _facts(progress, federation)
        self.bar.start()
        self._set(progress.rounds, progress.round, self.facts)

    def judged(self, done: int, total: int) -> None:
        """The rounds are over; of so many evaluations so many are done, or nobody counts."""
        if done == 0:
            self.bar.reset(self.task, facts="evaluating")
            self.bar.tasks[0].total = total or None  # which `reset` leaves as it was; without one the bar pulses
        elif not self._soon():
            self.shown = time.monotonic()
            self._set(total, done, "evaluating")

    def leave(self) -> None:
        """Puts the bar away; one that never moved is not left above an error."""
        if self.facts == "":
            self.bar.live.transient = True
        elif self.bar.tasks[0].fields["facts"] != self.facts:
            self._set(self.rounds, self.rounds, self.facts)
        if self.bar.live.is_started:
            self.bar.stop()

    def _set(self, total: int, done: int, facts: str) -> None:
        self.bar.update(self.task, total=total, completed=done, facts=facts, refresh=True)

    def _soon(self) -> bool:
        return time.monotonic() - self.shown < OFTEN


class _Lines:
    """For a file that is read while it grows: a line where a phase begins, then every minute, and at the end."""

    def __init__(self, title: str) -> None:
        self.title, self.phase, self.shown = title, "", 0.0

    def show(self, progress: Round, federation: Federation) -> None:
        """A round is over."""
        _tell_failures(progress)
        if progress.phase != self.phase or self._late() or progress.round == progress.rounds:
            self.phase = progress.phase
            self._say(_facts(progress, federation))

    def judged(self, done: int, total: int) -> None:
        """The rounds are over; of so many evaluations so many are done, or nobody counts."""
        if done == 0:
            self._say("evaluating")
        elif self._late():
            self._say(f"evaluating, {100 * done // total} %")

    def _late(self) -> bool:
        return time.monotonic() - self.shown >= SELDOM

    def _say(self, facts: str) -> None:
        self.shown = time.monotonic()
        console.print(escape(f"{self.title}: {facts}"), highlight=False, soft_wrap=True)


def _say(sentence: str) -> None:
    console.print(escape(sentence), highlight=False)


def _tell_failures(progress: Round) -> None:
    for name, why in progress.failures.items():
        console.print(f"[yellow]round {progress.round}: {escape(name)} was left out. {escape(why)}[/yellow]")


def _facts(progress: Round, federation: Federation) -> str:
    parts = [f"{progress.phase} {progress.round}/{progress.rounds}"]
    for name in ("loss", "dual", "semidual"):
        if name in progress.metrics:
            parts.append(f"{name} {float(progress.metrics[name]):.4f}")
    if "answered" in progress.metrics:
        parts.append(f"{float(progress.metrics['answered']):.0f}/{len(federation.names)} silos")
    parts.append(f"{federation.ledger.bytes() / 1e6:.1f} MB")
    return " · ".join(parts)
