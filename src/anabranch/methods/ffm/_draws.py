"""Every silo's pairs of a round, where a silo solves for them: side by side, and ahead of a GPU that is still busy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anabranch.coupling import Pairs
from anabranch.federation import Silo, begins
from anabranch.methods.ffm._half import FlowHalf
from anabranch.methods.ffm._messages import Gradient
from anabranch.methods.ffm._together import draw_all

MOST_THREADS = 8
DRAWN = "ffm/drawn"  # what a silo has begun, in its cache: {round: future}
DEVICES = ("cuda",)  # where there is time to draw ahead: on a CPU the next round would take the cores from this one


@dataclass(frozen=True)
class Drawn:
    """Pairs, the generator where drawing them left it, and when a GPU will have them."""

    pairs: Pairs
    generator: torch.Generator
    ready: Any = None


@begins(Gradient)
def draw_ahead(silos: Sequence[Silo], number: int) -> None:
    """Lets threads draw and solve for the pairs of round `number`, where that depends on no parameters.

    A thread ends with the last pair of its round, so that none is left when training ends, however it ends.
    """
    halves = [silo.cache.get("ffm") for silo in silos]
    ready = [half for half in halves if isinstance(half, FlowHalf) and _can_draw_ahead(half)]
    if not ready or len(ready) < len(silos):
        return
    pool = ThreadPoolExecutor(threads(len(silos), ready[0].device), thread_name_prefix="coupling")
    for silo, half in zip(silos, ready, strict=True):
        stream = _stream(half.device) if half.device.type == "cuda" else None
        begun = {place: future for place, future in silo.cache.get(DRAWN, {}).items() if place >= number - 1}
        silo.cache[DRAWN] = begun | {number: pool.submit(_draw_one, silo, half, number, stream)}
    pool.shutdown(wait=False)


def draw(silos: Sequence[Silo], halves: Sequence[FlowHalf]) -> list[Drawn]:
    """Every silo's pairs of this round: those begun before, or else drawn now. Both have the same numbers."""
    begun: list[Future[Drawn] | None] = [silo.cache.get(DRAWN, {}).pop(silo.round, None) for silo in silos]
    found = [future for future in begun if future is not None]
    if len(found) == len(silos):
        return [_received(future.result(), half.device) for future, half in zip(found, halves, strict=True)]
    generators = [silo.generator("batch", 0, device=half.device) for silo, half in zip(silos, halves, strict=True)]
    workers = threads(len(silos), halves[0].device)
    pairs = draw_all(silos, halves, generators, workers) or _draw_each(silos, halves, generators, workers)
    return [Drawn(*one) for one in zip(pairs, generators, strict=True)]


def _draw_each(
    silos: Sequence[Silo], halves: Sequence[FlowHalf], generators: Sequence[torch.Generator], workers: int
) -> list[Pairs]:
    work = list(zip(halves, silos, generators, strict=True))
    if halves[0].settings.coupling.name != "minibatch" or workers == 1:
        return [half.draw(silo, generator) for half, silo, generator in work]
    with ThreadPoolExecutor(workers, thread_name_prefix="coupling") as pool:
        return list(pool.map(lambda one: one[0].draw(one[1], one[2]), work))


def threads(silos: int, device: torch.device) -> int:
    """How many threads solve for so many silos: as many as torch may use, or beside a GPU as there are cores.

    There torch itself needs one thread, and is often given no more while the cores idle. What is found does not depend
    on how many there are.
    """
    return max(1, min(_cores() if device.type == "cuda" else torch.get_num_threads(), silos, MOST_THREADS))


def _cores() -> int:
    """Those that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # on Linux alone
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _can_draw_ahead(half: FlowHalf) -> bool:
    return half.device.type in DEVICES and half.settings.coupling.name == "minibatch" and half.coupling is not None


def _draw_one(silo: Silo, half: FlowHalf, number: int, stream: torch.cuda.Stream | None) -> Drawn:
    """On a stream of its own: to read a matrix of costs from the GPU must not mean to wait for the whole step."""
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        generator = silo.generator("batch", 0, device=half.device, at=number)
        pairs = half.draw(silo, generator, at=number)
        return Drawn(pairs, generator, stream.record_event() if stream is not None else None)


def _received(drawn: Drawn, device: torch.device) -> Drawn:
    """The same, for the stream that computes: it waits for them, and their memory waits for it."""
    if drawn.ready is not None:
        current = torch.cuda.current_stream(device)
        current.wait_event(drawn.ready)
        for value in vars(drawn.pairs).values():
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)
    return drawn


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    torch.cuda.synchronize(device)  # the silos' points, which are read there, must have arrived
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
