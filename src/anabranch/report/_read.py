"""Run folders, read for comparing: which runs are seeds of one method, and which are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.errors import RunFolderError, UsageError
from anabranch.report._statistics import Statistics
from anabranch.runs import Config, Row, RunFolder


@dataclass(frozen=True)
class Run:
    """One run folder as it stands. `method` is the config's, with the folder's name where that alone is ambiguous."""

    path: Path
    config: Config
    method: str
    environment: dict[str, str]
    metrics: list[dict[str, Any]]
    rows: list[Row]
    finished: bool

    @property
    def problem(self) -> str:
        """The problem that the run is about."""
        return self.config.problem

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """What pictures are drawn from; empty where there is nothing."""
        try:
            return RunFolder(self.path).load_arrays("samples.npz")
        except RunFolderError:
            return {}


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. Those that differ in nothing but the seed are one method, and are averaged."""

    runs: tuple[Run, ...]

    @property
    def problems(self) -> list[str]:
        """Every problem once, in the order of the runs."""
        return list(dict.fromkeys(run.problem for run in self.runs))

    @property
    def methods(self) -> list[str]:
        """Every method once: federated ones first, then those that pool the data."""
        names = dict.fromkeys(run.method for run in self.runs)
        return sorted(names, key=lambda name: name in self.pooled)

    @property
    def pooled(self) -> set[str]:
        """Methods that see all data in one place: baselines, not federated."""
        return {run.method for run in self.runs if run.config.data.pooled}

    @property
    def rows(self) -> list[Row]:
        """The result rows of every finished run, and its `rounds` and `seconds` as rows."""
        return [row for run in self.runs for row in run.rows]

    @property
    def statistics(self) -> Statistics:
        """Means over seeds."""
        return Statistics(self.rows)

    @property
    def unfinished(self) -> list[Run]:
        """Runs without results yet."""
        return [run for run in self.runs if not run.finished]

    def of(self, problem: str, method: str | None = None) -> list[Run]:
        """The runs of a problem, or of one method on it, by rising seed."""
        found = [run for run in self.runs if run.problem == problem and method in (None, run.method)]
        return sorted(found, key=lambda run: run.config.seed)


def comparison(runs: Sequence[Path]) -> Comparison:
    """Reads run folders. A folder that is named twice counts once."""
    if not runs:
        raise UsageError("There is nothing to report on; give at least one run folder.")
    paths = list({Path(path).resolve(): Path(path) for path in runs}.values())
    configs = [RunFolder(path).config() for path in paths]
    methods = _methods(paths, configs)
    return Comparison(tuple(_read(*parts) for parts in zip(paths, configs, methods, strict=True)))


def _read(path: Path, config: Config, method: str) -> Run:
    folder = RunFolder(path)
    environment = folder.read_json("environment.json") if (path / "environment.json").exists() else {}
    if not folder.finished:
        return Run(path, config, method, environment, folder.metrics(), [], finished=False)
    results = folder.read_json("results.json")
    key = {"problem": config.problem, "method": method, "seed": config.seed}
    rows = [{**row, **key} for row in results["rows"]]
    rows += [{**key, "nfe": None, "metric": name, "value": results[name]} for name in ("rounds", "seconds")]
    return Run(path, config, method, environment, folder.metrics(), rows, finished=True)


def _methods(paths: list[Path], configs: list[Config]) -> list[str]:
    """The method's name, or "name (folder)" where runs of that name differ in more than the seed."""
    settings: dict[tuple[str, str], list[str]] = {}
    seen: dict[tuple[str, str], list[int]] = {}
    for config in configs:
        key = (config.problem, config.method)
        settings.setdefault(key, []).append(_settings(config))
        seen.setdefault(key, []).append(config.seed)
    names = _short_names(paths)
    methods = []
    for path, config in zip(paths, configs, strict=True):
        key = (config.problem, config.method)
        clear = len(set(settings[key])) == 1 and len(set(seen[key])) == len(seen[key])
        methods.append(config.method if clear else f"{config.method} ({names[path]})")
    return methods


def _settings(config: Config) -> str:
    """All that makes a method what it is: everything but the seed and how often the run was logged and saved."""
    values = config.to_dict()
    return json.dumps({key: value for key, value in values.items() if key not in ("seed", "run")}, sort_keys=True)


def _short_names(paths: list[Path]) -> dict[Path, str]:
    """The last part of each path, or as many last parts as tell them apart."""
    parts = {path: path.resolve().parts for path in paths}
    for length in range(1, max(map(len, parts.values())) + 1):
        names = {path: "/".join(part[-length:]) for path, part in parts.items()}
        if len(set(names.values())) == len(paths):
            return names
    return {path: str(path) for path in paths}
