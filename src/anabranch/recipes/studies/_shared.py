"""Results that cells of a recipe share: whoever needs one first computes it, the others read it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.errors import CheckpointError, RunFolderError
from anabranch.federation import load, save
from anabranch.recipes._study import StudyCell

FOLDER = "shared"  # beside the problems' folders


def once(
    cell: StudyCell, name: str, options: Mapping[str, Any], compute: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors that `compute` gives, computed by the first cell of the recipe that asks for them.

    They are known by `name` and `options`, which JSON must be able to hold: name everything that they follow from, the
    problem and the seed included where they matter. Cells lie in OUT/problem/method/seed-N, what they share in
    OUT/shared. A process that asks while another computes waits for it; if that one fails or is killed, the next in
    line computes. A file that was damaged is computed again. Tensors come back on the CPU, whether computed or read.
    """
    facts = {"name": name, "options": json.loads(json.dumps(options))}
    digest = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=10).hexdigest()
    path = cell.folder.parents[2] / FOLDER / f"{name}-{digest}.tensors"
    with _alone(path.with_suffix(".lock")):
        if (found := _read(path)) is None:
            save(path, compute(), facts)
            found = load(path)[0]
    return found


def _read(path: Path) -> dict[str, Tensor] | None:
    """What is there; None where nothing is, or nothing sound."""
    if not path.exists():
        return None
    try:
        return load(path)[0]
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
