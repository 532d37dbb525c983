"""Some parts, one after the other, into figures that are saved as they come."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from anabranch.bench.images._ours import told_of_limits
from anabranch.bench.images._parts import PARTS, Watch
from anabranch.bench.images._result import ImageFigures
from anabranch.bench.images._work import ImageWork
from anabranch.errors import UsageError, unknown

USUAL = ("step", "sampling")
LOSS = ("loss-ours", "loss-sequential")


def parts_of(names: Sequence[str]) -> list[str]:
    """The parts of these names, each once; "loss" is both sides of it, and nothing named is what does not take long.

    >>> parts_of(["sampling", "loss"])
    ['sampling', 'loss-ours', 'loss-sequential']
    """
    chosen: list[str] = []
    for name in names or USUAL:
        if name != "loss" and name not in PARTS:
            raise unknown("part", name, [*PARTS, "loss"])
        chosen += LOSS if name == "loss" else (name,)
    return list(dict.fromkeys(chosen))


def measure_images(
    work: ImageWork, parts: Sequence[str] = (), out: Path | None = None, watch: Watch = lambda what: None
) -> ImageFigures:
    """Measures the named parts; `watch` is told what is measured now.

    With `out`, what that file holds already is kept beside the new figures, and every row is saved once it is there:
    parts may be measured by several runs, and a run that is cut loses the row it was at.
    """
    chosen = parts_of(parts)
    figures = ImageFigures(machine_of(work), work.record())
    if out is not None:
        if out.is_dir():
            raise UsageError(f"'{out}' is a folder. Name a file for the figures with --out.")
        figures.merge(out)
    with told_of_limits(work):
        for row in (row for name in chosen for row in PARTS[name](work, watch)):
            figures.add([row])
            if out is not None:
                figures.save(out)
    return figures


def machine_of(work: ImageWork) -> dict[str, str]:
    """What times depend on, without anything that names a person or a machine."""
    gpu = work.device.type == "cuda"
    device = torch.cuda.get_device_name(work.device) if gpu else f"CPU, {torch.get_num_threads()} threads"
    return {"device": device, "torch": torch.__version__, "python": platform.python_version()}
