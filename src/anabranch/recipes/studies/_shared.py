"""Results that cells of a recipe share: whoever needs one first computes it, the others read it."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.errors import CheckpointError, RunFolderError
from anabranch.federation import load, save
from anabranch.recipes._study import StudyCell

FOLDER = "shared"  # beside the problems' folders
KEPT_EVERY = 60.0  # seconds


def once(
    cell: StudyCell, name: str, options: Mapping[str, Any], compute: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors that `compute` gives, computed by the first cell of the recipe that asks for them.

    They are known by `name` and `options`, which JSON must be able to hold: name everything that they follow from, the
    problem and the seed included where they matter. Cells lie in OUT/problem/method/seed-N, what they share in
    OUT/shared. A process that asks while another computes waits for it; if that one fails or is killed, the next in
    line computes. A file that was damaged is computed again. Tensors come back on the CPU, whether computed or read.
    """
    path, facts = _place(cell, name, options)
    with _alone(path.with_suffix(".lock")):
        if (read := _read(path)) is None:
            save(path, compute(), facts)
            read = load(path)
            Unfinished(cell, name, options).forget()
    return read[0]


class Unfinished:
    """What the computation of a shared result had come to when it was last kept: one that is killed loses a minute.

    Only whoever computes, inside `once`, may use it. `keep` writes now and then; the file goes when the result comes.
    """

    def __init__(self, cell: StudyCell, name: str, options: Mapping[str, Any]) -> None:
        self.path = _place(cell, name, options)[0].with_suffix(".unfinished")
        self._last = time.monotonic()

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and facts of the last time; None where nothing was kept, or nothing sound."""
        return _read(self.path)

    def keep(self, found: Callable[[], tuple[Mapping[str, Tensor], Mapping[str, Any]]]) -> None:
        """Writes what `found` gives, unless it was done less than a minute ago. A full disk stops nobody."""
        if time.monotonic() - self._last >= KEPT_EVERY:
            with suppress(RunFolderError):
                save(self.path, *found())
            self._last = time.monotonic()

    def forget(self) -> None:
        """Removes the file."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _place(cell: StudyCell, name: str, options: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Where a result lies, and what it is known by."""
    facts = {"name": name, "options": json.loads(json.dumps(options))}
    digest = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=10).hexdigest()
    return cell.folder.parents[2] / FOLDER / f"{name}-{digest}.tensors", facts


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What is there; None where nothing is, or nothing sound."""
    if not path.exists():
        return None
    try:
        return load(path)
    except CheckpointError:
        return None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process holds the lock, and holds it; it goes with the process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise RunFolderError(
            f"{path.parent} cannot be written ({error.strerror}); choose another folder with --out."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
