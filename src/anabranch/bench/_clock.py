"""Times that can be compared: taken in turn, so that a busy moment of the machine falls on all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

Task = Callable[[], object]


@dataclass(frozen=True)
class Budget:
    """How long to measure: `repeats` turns of about `seconds` for each task, each turn in short `slices`."""

    seconds: float = 1.0
    repeats: int = 5
    slices: int = 10


def interleaved(tasks: Mapping[str, Task], budget: Budget) -> dict[str, float]:
    """Milliseconds a call of each task: the median over turns. Tasks alternate within a turn, slice by slice, a, b, a,
    b, …, so that a machine which is slower for a second is slower for all.

    A task is first called twice, which warms it up and tells how many calls fill a slice.
    """
    calls = {}
    for name, task in tasks.items():
        task()
        calls[name] = max(1, math.ceil(budget.seconds / budget.slices / max(_seconds(task, 1), 1e-7)))
    turns: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(budget.repeats):
        spent = dict.fromkeys(tasks, 0.0)
        for _ in range(budget.slices):
            for name, task in tasks.items():
                spent[name] += _seconds(task, calls[name]) / calls[name]
        for name, seconds in spent.items():
            turns[name].append(seconds / budget.slices)
    return {name: 1000 * median(times) for name, times in turns.items()}


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """p of the power law time ∝ size^p that fits best on logarithmic axes.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _seconds(task: Task, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        task()
    return time.perf_counter() - begin
