"""Runs every cell of a recipe, in parallel processes, skipping what is finished."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.errors import AnabranchError
from anabranch.recipes._checks import Check, run_checks
from anabranch.recipes._recipe import Recipe
from anabranch.recipes._theory import theory
from anabranch.runs import Config, Row, RunFolder, train

# A cell is one single-threaded process; libraries that would start threads of their own are told not to.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class Cell:
    """One run of a table."""

    config: Config
    path: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.config.problem} {self.config.method} seed {self.config.seed}"

    def round(self) -> int:
        """How far it is."""
        records = RunFolder(self.path).metrics()
        return int(records[-1]["round"]) if records else 0


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


Watch = Callable[[Sequence[Cell], Sequence[Cell]], None]


def cells_of(
    recipe: Recipe, scale: str, out: Path, seed: int | None, methods: Sequence[str], problems: Sequence[str]
) -> list[Cell]:
    """The cells of a scale with their folders: OUT/problem/method/seed-N."""
    one = ["run.threads=1"]
    return [
        Cell(recipe.config(problem, method, scale, number, one), out / problem / method / f"seed-{number}")
        for problem, method, number in recipe.cells(scale, seed, methods, problems)
    ]


def reproduce(recipe: Recipe, scale: str, cells: Sequence[Cell], jobs: int, watch: Watch) -> Outcome:
    """Runs the cells that are not finished, `jobs` at a time, then gathers all rows and checks them.

    `watch` is called about once a second with all cells and those now running. A cell that fails does not stop the
    others.
    """
    todo = [cell for cell in cells if not RunFolder(cell.path).finished]
    failures = _run(todo, list(cells), jobs, watch) if todo else {}
    rows: list[Row] = []
    done = [cell for cell in cells if RunFolder(cell.path).finished]
    for cell in done:
        RunFolder(cell.path).begin(cell.config)  # a folder with other settings must not pass for this cell
        rows += RunFolder(cell.path).read_json("results.json")["rows"]
    if not done:
        return Outcome(rows, [], [], failures)
    if "theory" in recipe.values:
        options = recipe.values["theory"]
        for config in {cell.config.problem: cell.config for cell in cells}.values():
            rows += theory(config, options["points"][scale], options["overlaps"])
    checks = run_checks(recipe.values.get("checks", []), rows, scale)
    return Outcome(rows, checks, [cell.path for cell in done], failures)


def _run(todo: list[Cell], cells: list[Cell], jobs: int, watch: Watch) -> dict[str, str]:
    os.environ.update(_ONE_THREAD)
    failures: dict[str, str] = {}
    # The dearest first, so that no long cell is left alone at the end.
    queue = sorted(todo, key=lambda cell: -_price(cell.config))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_end_with, initargs=(os.getpid(),)) as pool:
        running: dict[Future[list[Row]], Cell] = {}
        try:
            while queue or running:
                while queue and len(running) < jobs:
                    cell = queue.pop(0)
                    running[pool.submit(train, cell.config, cell.path)] = cell
                finished, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    cell = running.pop(future)
                    if error := future.exception():
                        failures[cell.name] = _sentence(error)
                watch(cells, list(running.values()))
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)  # each cell saves a checkpoint on the same Ctrl-C
            raise
    return failures


def _price(config: Config) -> float:
    """A rough order of how long a cell takes."""
    solving = {"minibatch": 8.0, "balanced": 12.0, "semidiscrete": 6.0, "entropic": 4.0, "potential": 3.0}
    return config.flow.rounds * solving.get(config.coupling.name, 1.0) * config.flow.batch


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, AnabranchError) else f"{type(error).__name__}: {error}"


def _end_with(parent: int) -> None:
    """Has a worker end when the process that started it is killed; left to itself it would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
