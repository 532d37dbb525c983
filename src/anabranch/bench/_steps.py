"""Training steps and sampling, here and there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.bench._clock import Budget, interleaved
from anabranch.bench._ours import Ours
from anabranch.bench._peer import Peer, missing
from anabranch.bench._row import Row, compared
from anabranch.data import shape
from anabranch.methods.ffm import FlowSettings

Watch = Callable[[str], None]

POINTS = 5000  # in each silo
SETTINGS = FlowSettings(source="8gaussians", hidden=64, batch=256, rounds=10**9)
LIMITS = {("vanilla", 2): 1.2, ("vanilla", 32): 2.5, ("lot", 2): 1.3, ("lot", 32): 1.3}
SAMPLES, EVALUATIONS = 2048, 20


def silos_of(count: int) -> dict[str, Tensor]:
    """Two moons, dealt to `count` silos."""
    points = shape("moons").points(count * POINTS, seeds.generator(0, "bench", count))
    return {f"silo-{number:02d}": part for number, part in enumerate(torch.split(points, POINTS))}


def step_rows(budget: Budget, watch: Watch) -> list[Row]:
    """A training step, pairing included: vanilla and LOT on 2 and on 32 silos, 256 pairs of each a step."""
    rows = []
    for (method, count), limit in LIMITS.items():
        what = f"{method} step, {count} silos"
        watch(what)
        points = silos_of(count)
        tasks = {} if missing() else {"peer": Peer(points, method, SETTINGS).step}
        times = interleaved({**tasks, "ours": Ours(points, method, SETTINGS).step}, budget)
        rows.append(compared(what, times.get("peer"), times["ours"], limit))
    return rows


def sampling_rows(budget: Budget, watch: Watch) -> list[Row]:
    """An evaluation of the velocity in Euler's solver, of a plain loop there."""
    what = f"evaluation in Euler's solver, {SAMPLES} points"
    watch(what)
    points = silos_of(2)
    sides: dict[str, Peer | Ours] = {} if missing() else {"peer": Peer(points, "vanilla", SETTINGS)}
    sides["ours"] = Ours(points, "vanilla", SETTINGS)
    x0 = shape(SETTINGS.source).points(SAMPLES, seeds.generator(0, "bench", "sample"))
    times = interleaved({name: partial(side.sample, x0, EVALUATIONS) for name, side in sides.items()}, budget)
    each = {name: milliseconds / EVALUATIONS for name, milliseconds in times.items()}
    return [compared(what, each.get("peer"), each["ours"])]
