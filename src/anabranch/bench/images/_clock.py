"""Milliseconds and memory of a step, on a device that works ahead of the program."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Timed:
    """Milliseconds a call, the most memory held at once, in gibibytes (None where torch does not count it), and
    milliseconds a call in the fastest turn."""

    milliseconds: float
    gibibytes: float | None
    fastest: float


def timed(
    task: Callable[[], object],
    device: torch.device,
    steps: int = 10,
    turns: int = 3,
    seconds: float = 15.0,
    warm_up: int = 3,
) -> Timed:
    """The median over `turns`, each of `steps` calls, or fewer where these would take longer than `seconds` in all.

    `warm_up` calls come first: kernels are chosen, graphs recorded, memory is taken. The last of them tells how long a
    call takes. The clock is read when the device has finished. Memory is the most that torch had taken from the device
    since before the first turn, with all that was there already: free what another measurement has left. What torch has
    taken is more than tensors need, but a recorded step's own memory is counted nowhere else.
    """
    for _ in range(warm_up - 1):
        task()
    calls = max(1, min(steps, math.ceil(seconds / turns / max(_seconds(task, device, 1), 1e-9))))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = [_seconds(task, device, calls) / calls for _ in range(turns)]
    peak = torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None
    return Timed(1000 * median(times), peak, 1000 * min(times))


def _seconds(task: Callable[[], object], device: torch.device, calls: int) -> float:
    wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        task()
    wait(device)
    return time.perf_counter() - begin


def wait(device: torch.device) -> None:
    """Until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Gives back what nobody holds any more, so that the next measurement counts its own memory alone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def tuned() -> Iterator[None]:
    """Within, cuDNN tries its algorithms and takes the fastest; afterwards as before."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
