"""A run folder: what happened, written so that a crash at any instant loses little and breaks nothing."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import BusyError, CheckpointError, RunFolderError
from anabranch.federation import drop_leftovers, load, save, write_atomically
from anabranch.runs._config import Config, from_dict
from anabranch.runs._differences import differences

KEPT = 2  # checkpoints; the older one serves when the newer is found corrupted


@dataclass(frozen=True)
class Checkpoint:
    """The server's state after `round`, and facts such as the ledger."""

    round: int
    state: dict[str, Tensor]
    facts: dict[str, Any]


class RunFolder:
    """config.json, environment.json, metrics.jsonl, checkpoints/, silos/, results.json, samples.npz, report.html."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        """Whether training and evaluation are done."""
        return (self.path / "results.json").exists()

    @property
    def identity(self) -> str:
        """A random name of this run, by which silos tell it from others of the same settings."""
        path = self.path / "identity"
        if not path.exists():
            write_atomically(path, secrets.token_hex(8).encode())
        return path.read_text()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for one process; the lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunFolderError(
                f"The run folder {self.path} cannot be written ({error.strerror}); choose another with --out."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BusyError(
                    f"Another process is running in {self.path}; wait for it, or choose another folder with --out."
                ) from error
            yield

    def begin(self, config: Config) -> None:
        """Writes the config of a new run, or makes sure that the folder holds one that may go on with this config."""
        if (self.path / "config.json").exists():
            started = self.finished or self.checkpoints()
            old = self.config() if started else config
            lower = not self.finished and 1 <= config.federation.quorum <= old.federation.quorum
            was, now = (_settled(each, lower) for each in (old, config))
            if was != now:
                that = "that run is finished" if self.finished else f"continue that run with {self.again}"
                raise RunFolderError(
                    f"{self.path} holds another run: {differences(was.to_dict(), now.to_dict())}. Choose another"
                    f" folder with --out{';' if self.finished else ', or'} {that}."
                )
            if self.finished or (started and old == config):
                return
        self.write_json("environment.json", environment())
        self.write_json("config.json", config.to_dict())

    @property
    def in_a_cell(self) -> bool:
        """Whether it is the run of a recipe's cell, in which more happens than training."""
        return _is_a_cell(self.path.resolve().parent)

    @property
    def again(self) -> str:
        """The command that goes on with it."""
        return "the same 'anabranch reproduce'" if self.in_a_cell else f"'anabranch resume {self.path}'"

    def config(self) -> Config:
        """The run's exact config."""
        if _is_a_cell(self.path):
            run = self.path / "run"
            there = f"; its run is {run}" if (run / "config.json").exists() else ", and has no run of its own"
            raise RunFolderError(f"{self.path} is a cell of a recipe{there}. 'anabranch reproduce' goes on with cells.")
        try:
            return from_dict(json.loads((self.path / "config.json").read_text()))
        except OSError as error:
            if not self.path.exists():
                raise RunFolderError(f"There is nothing at {self.path}; give the folder of a run.") from error
            raise RunFolderError(f"{self.path} is no run folder: it has no readable config.json.") from error
        except ValueError as error:
            raise RunFolderError(f"The config of {self.path} cannot be used: {error}") from error

    def write_json(self, name: str, value: Any) -> None:
        """Writes a JSON file in one step."""
        write_atomically(self.path / name, (json.dumps(value, indent=1) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """Reads a JSON file of the folder."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} is missing or unreadable; has the run finished?") from error

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores a checkpoint and forgets all but the last two."""
        save(self._checkpoint_path(checkpoint.round), checkpoint.state, {**checkpoint.facts, "round": checkpoint.round})
        for old in self.checkpoints()[:-KEPT]:
            self._checkpoint_path(old).unlink(missing_ok=True)
        drop_leftovers(self.path / "checkpoints")

    def checkpoints(self) -> list[int]:
        """The rounds that have a checkpoint, rising."""
        return sorted(int(path.stem[6:]) for path in (self.path / "checkpoints").glob("round-*.checkpoint"))

    def load_checkpoint(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest sound checkpoint, and a sentence about every one that had to be passed over."""
        warnings: list[str] = []
        for number in reversed(self.checkpoints()):
            try:
                state, facts = load(self._checkpoint_path(number))
                return Checkpoint(number, state, facts), warnings
            except CheckpointError as error:
                warnings.append(f"{error} The one before it is used.")
        if warnings:
            warnings.append("No sound checkpoint is left.")
        return None, warnings

    def drop_checkpoints_after(self, number: int) -> None:
        """Removes checkpoints newer than the one a run resumes from: they are corrupted."""
        for other in self.checkpoints():
            if other > number:
                self._checkpoint_path(other).unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """Every logged round; a line that a crash cut short is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text().splitlines()
        except OSError:
            return []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
        return records

    def log(self) -> TextIO:
        """Where rounds are logged, a line each, behind those that are there."""
        return (self.path / "metrics.jsonl").open("a")

    def truncate_metrics(self, last: int) -> None:
        """Forgets what was logged after round `last`: a resumed run logs it again."""
        kept = [record for record in self.metrics() if record["round"] <= last]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())

    def save_arrays(self, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Writes arrays as .npz in one step."""
        temporary = self.path / f".{name}.{os.getpid()}.npz"
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.replace(self.path / name)

    def load_arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """Reads arrays; nothing is unpickled."""
        try:
            with np.load(self.path / name, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} is missing or unreadable; has the run finished?") from error

    def _checkpoint_path(self, number: int) -> Path:
        return self.path / "checkpoints" / f"round-{number:08d}.checkpoint"


def _settled(config: Config, lower: bool) -> Config:
    """The config without what may be given anew: how a result is computed and, where it is `lower`, the quorum."""
    quorum = 1 if lower else config.federation.quorum
    flow, federation = replace(config.flow, passes=1, compile="auto"), replace(config.federation, quorum=quorum)
    return replace(config, flow=flow, federation=federation)


def environment() -> dict[str, str]:
    """What a run depended on, without anything that names a person or a machine."""
    packages = {}
    for name in ("anabranch", "torch", "numpy", "scipy", "POT", "torchdiffeq", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {"python": platform.python_version(), "device": device, "threads": str(torch.get_num_threads()), **packages}


def _is_a_cell(path: Path) -> bool:
    """Whether a folder holds a cell of a recipe that is more than a run."""
    try:
        found = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "study" in found
