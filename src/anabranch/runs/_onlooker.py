"""A run folder for those that must not write: where several processes run together, rank 0 writes for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from anabranch.errors import RunFolderError
from anabranch.federation import Ranks
from anabranch.runs._config import Config
from anabranch.runs._folder import Checkpoint, RunFolder


class Onlooker(RunFolder):
    """Reads what another process writes, and writes nothing."""

    @property
    def identity(self) -> str:
        """The run's random name, as the other process chose it."""
        try:
            return (self.path / "identity").read_text()
        except OSError as error:
            raise RunFolderError(
                f"{self.path} is not the folder that rank 0 writes to: it has no identity. All processes of a run need"
                " one folder on a disk that they share."
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The one that writes holds it."""
        yield

    def begin(self, config: Config) -> None:
        """Nothing to write."""

    def write_json(self, name: str, value: Any) -> None:
        """Nothing to write."""

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Nothing to write."""

    def drop_checkpoints_after(self, number: int) -> None:
        """Nothing to remove."""

    def truncate_metrics(self, last: int) -> None:
        """Nothing to write."""

    def save_arrays(self, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Nothing to write."""

    def log(self) -> TextIO:
        """Nowhere."""
        return Path(os.devnull).open("a")


@contextmanager
def begun(path: Path, ranks: Ranks, config: Config | None = None) -> Iterator[RunFolder]:
    """The folder, held and begun by rank 0 with this config or its own; the others look on, once that is done."""
    folder = RunFolder(path) if ranks.first else Onlooker(path)
    with folder.locked():
        with ranks.in_turn():
            if config is not None:
                folder.begin(config)
            if ranks.count > 1:
                _ = folder.identity  # chosen before anybody asks
        yield folder
