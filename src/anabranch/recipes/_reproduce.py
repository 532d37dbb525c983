"""Runs every cell of a recipe, in parallel processes, skipping what is finished."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anabranch.errors import AnabranchError, BusyError, UsageError
from anabranch.recipes._checks import Check, run_checks
from anabranch.recipes._queue import Queue
from anabranch.recipes._recipe import Recipe
from anabranch.recipes._share import round_of, share_of
from anabranch.recipes._study import StudyCell, StudyRun, freed
from anabranch.recipes._theory import theory
from anabranch.recipes._worker import Said, begin_worker
from anabranch.runs import Config, Row, RunFolder, merged, train

SCORED = ("flow_images",)  # studies whose samples have an Inception Score where its last layer is given
# A cell is one single-threaded process; libraries that would start threads of their own are told not to.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class Cell:
    """One run of a table."""

    config: Config
    path: Path
    alone = False  # flows may train side by side

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.config.problem} {self.config.method} seed {self.config.seed}"

    @property
    def price(self) -> float:
        """A rough order of how long it takes."""
        solving = {"minibatch": 8.0, "balanced": 12.0, "semidiscrete": 6.0, "entropic": 4.0, "potential": 3.0}
        return self.config.flow.rounds * solving.get(self.config.coupling.name, 1.0) * self.config.flow.batch

    def finished(self) -> bool:
        """Whether its rows are there; a folder with other settings must not pass for this cell."""
        folder = RunFolder(self.path)
        if folder.finished:
            folder.begin(self.config)
        return folder.finished

    def run(self) -> None:
        """Trains it, from its last checkpoint on."""
        train(self.config, self.path)

    def rows(self) -> list[Row]:
        """What it found."""
        found: list[Row] = RunFolder(self.path).read_json("results.json")["rows"]
        return found

    @property
    def title(self) -> str:
        """What is running, without its seed."""
        return f"{self.config.method} on {self.config.problem}"

    def round(self) -> int:
        """How far it is."""
        return round_of(self.path)

    def share(self) -> float:
        """How much of its rounds are done."""
        return share_of(self.config, self.path)


@dataclass
class Outcome:
    """What a reproduction gives: tidy rows, checks, the run folders, and cells that failed, with the reason."""

    rows: list[Row]
    checks: list[Check]
    runs: list[Path]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything ran and every check holds."""
        return not self.failures and all(check.ok for check in self.checks)


AnyCell = Cell | StudyRun
Watch = Callable[[Sequence[AnyCell], Sequence[AnyCell]], None]


def cells_of(
    recipe: Recipe,
    scale: str,
    out: Path,
    seed: int | None,
    methods: Sequence[str],
    problems: Sequence[str],
    classes: Path | None = None,
    changes: Sequence[str] = (),
) -> Sequence[AnyCell]:
    """The cells of a scale with their folders: OUT/problem/method/seed-N.

    `classes` is a file with Inception's layer of classes, for recipes that can have an Inception Score; `changes` are
    `key=value` texts for what a machine may need otherwise and no figure rests on.
    """
    if classes is not None and recipe.study not in SCORED:
        raise UsageError(
            f"'{recipe.name}' has no Inception Score, which a layer of classes is for; leave --classes out."
        )
    score = {} if classes is None else {"inception": {"classes": str(classes.resolve())}}
    more = merged(score, freed(recipe.study, changes))
    return [
        _cell(recipe, place, scale, out / place[0] / place[1] / f"seed-{place[2]}", more)
        for place in recipe.cells(scale, seed, methods, problems)
    ]


def _cell(recipe: Recipe, place: tuple[str, str, int], scale: str, folder: Path, more: dict[str, Any]) -> AnyCell:
    problem, method, seed = place
    if recipe.study is None:
        return Cell(recipe.config(problem, method, scale, seed, ["run.threads=1"]), folder)
    options = merged(recipe.options(problem, method, scale), more)
    return StudyRun(recipe.study, StudyCell(problem, method, seed, scale, options, folder, threads=1))


def reproduce(recipe: Recipe, scale: str, cells: Sequence[AnyCell], jobs: int, watch: Watch) -> Outcome:
    """Runs the cells that are not finished, `jobs` at a time, then gathers all rows and checks them.

    `watch` is called about once a second with all cells and those now running. Cells that another process is at work
    on are left to it, and waited for. A cell that fails does not stop the others. Ctrl-C does, once each has saved
    where it is; a warning says what is kept, and it is raised again.
    """
    try:
        return _reproduced(recipe, scale, cells, jobs, watch)
    except KeyboardInterrupt:
        warnings.warn(_kept(cells), stacklevel=2)
        raise


def _kept(cells: Sequence[AnyCell]) -> str:
    """What an interrupt leaves behind, and how to go on."""
    finished = sum(RunFolder(cell.path).finished for cell in cells)
    return (
        f"Stopped: {finished} of {len(cells)} cells are finished and kept in {cells[0].path.parents[2]}. The same"
        " command goes on from there."
    )


def _reproduced(recipe: Recipe, scale: str, cells: Sequence[AnyCell], jobs: int, watch: Watch) -> Outcome:
    todo = [cell for cell in cells if not cell.finished()]
    if todo and recipe.scale(scale).get("gpu") and not torch.cuda.is_available():
        warnings.warn(
            f"The scale '{scale}' of '{recipe.name}' is for a GPU, and torch finds none here; a CPU takes very much"
            f" longer. The recipe says of it: {recipe.scale(scale)['about']}",
            stacklevel=3,
        )
    failures = _run(todo, cells, jobs, watch) if todo else {}
    done = [cell for cell in cells if cell.finished()]
    rows = [row for cell in done for row in cell.rows()]
    if not done:
        return Outcome(rows, [], [], failures)
    if "theory" in recipe.values:
        options = recipe.values["theory"]
        for config in {cell.config.problem: cell.config for cell in cells if isinstance(cell, Cell)}.values():
            rows += theory(config, options["points"][scale], options["overlaps"])
    declared = [entry for entry in recipe.values.get("checks", []) if _asked(entry, cells)]
    checks = [check for entry in declared for check in run_checks([entry], _selected(entry, rows), scale)]
    return Outcome(rows, checks, [cell.path for cell in done], failures)


def _asked(entry: Mapping[str, Any], cells: Sequence[AnyCell]) -> bool:
    """Whether a check is about these cells: a study's check is not where none of its problems was selected."""
    problems = {cell.cell.problem for cell in cells if isinstance(cell, StudyRun)}
    return not problems or not problems.isdisjoint(entry.get("problems", problems))


def _selected(entry: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """The rows that a check selects by `where`. The others stay without a metric: they say which methods were run."""
    where = entry.get("where", {}).items()
    return [row if all(row.get(key) == value for key, value in where) else {**row, "metric": None} for row in rows]


def _run(todo: Sequence[AnyCell], cells: Sequence[AnyCell], jobs: int, watch: Watch) -> dict[str, str]:
    os.environ.update(_ONE_THREAD)
    failures: dict[str, str] = {}
    # The dearest first, so that no long cell is left alone at the end; then those that must be alone.
    queue = Queue(sorted(todo, key=lambda cell: (cell.alone, -cell.price)))
    context = multiprocessing.get_context("spawn")
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(jobs, context, initializer=begin_worker, initargs=(os.getpid(), folder)) as pool,
    ):
        said = Said(Path(folder))
        running: dict[Future[None], AnyCell] = {}
        watch(cells, [])
        try:
            while queue or running:
                while (cell := queue.first()) is not None and len(running) < (1 if cell.alone else jobs):
                    with _interrupts_later():  # a worker begins like this, and would fail on Ctrl-C as it imports
                        running[pool.submit(_work, queue.take())] = cell
                for future in _finished(running):
                    cell = running.pop(future)
                    if isinstance(error := future.exception(), BusyError):
                        queue.met(cell)
                    elif error:
                        failures[cell.name] = _sentence(error)
                said.pass_on()
                watch(cells, [*running.values(), *queue.with_others])
                if not running and queue.with_others:
                    time.sleep(1.0)
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)  # each cell saves a checkpoint on the same Ctrl-C
            raise
        finally:
            said.pass_on()
    return failures


def _finished(running: Collection[Future[None]], patience: float = 1.0) -> list[Future[None]]:
    """Those that are done, once there are any or patience is over.

    It sleeps, since Ctrl-C that comes while a lock is waited for can end in an error about the lock."""
    until = time.monotonic() + patience
    while True:
        done = [future for future in running if future.done()]
        if done or not running or time.monotonic() >= until:
            return done
        time.sleep(0.02)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until this is over; a process that is started meanwhile has it wait until `_work`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(cell: AnyCell) -> None:
    """A cell in its worker, which hears Ctrl-C only here; once it has, cells that wait for it are not begun."""
    heard = False
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        cell.run()
    except KeyboardInterrupt:
        heard = True
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if heard:
            signal.raise_signal(signal.SIGINT)  # heard again when the next cell begins


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, AnabranchError) else f"{type(error).__name__}: {error}"
