"""The parts that can be measured by themselves, each giving rows as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.bench.images._clock import Timed, release, timed, tuned
from anabranch.bench.images._loss import loss_rows
from anabranch.bench.images._ours import OurTraining, our_velocity, words_of
from anabranch.bench.images._peer import PlainNetwork, PlainTraining, plain_sample
from anabranch.bench.images._result import ImageRow
from anabranch.bench.images._roofline import Roofline, operations, operations_of_pass, roofline
from anabranch.bench.images._work import Case, ImageWork
from anabranch.flow import integrate

Watch = Callable[[str], None]
PEER = "peer"


def step_rows(work: ImageWork, watch: Watch) -> Iterator[ImageRow]:
    """A training step: the peer's, and ours with each coupling; vanilla always, since overhead is told by it."""
    best = roofline(work)
    yield _roofline_row(best)
    for case in work.cases:
        count = operations(work, case)
        watch(f"step, {case.name}: peer, silo after silo")
        peer, words = _peer_step(work, case)
        yield ImageRow("step", case.name, PEER, _figures(peer, count, best), words)
        vanilla: float | None = None
        for method in ("vanilla", *(name for name in work.methods if name != "vanilla")):
            watch(f"step, {case.name}: {method}")
            found, words = _our_step(work, case, method)
            vanilla = vanilla or found.milliseconds
            compared = {
                "speedup": peer.milliseconds / found.milliseconds,
                "overhead": found.milliseconds / vanilla - 1,
            }
            yield ImageRow("step", case.name, method, {**_figures(found, count, best), **compared}, words)


def sampling_rows(work: ImageWork, watch: Watch) -> Iterator[ImageRow]:
    """Euler's solver with as many evaluations on both sides: images times evaluations, a second."""
    best = roofline(work)
    yield _roofline_row(best)
    case = f"{work.samples} images, NFE {work.evaluations}"
    count = work.evaluations * operations_of_pass(work)
    generator = seeds.generator(0, "bench", "noise", device=work.device)
    x0 = torch.randn(work.samples, work.dimension, generator=generator, device=work.device)
    done = work.samples * work.evaluations * 1000

    watch("sampling: peer")
    peer, words = _peer_sampling(work, x0)
    rate = {"evaluations_a_second": done / peer.milliseconds}
    yield ImageRow("sampling", case, PEER, {**_figures(peer, count, best), **rate}, words)

    watch("sampling: ours")
    found, words = _our_sampling(work, x0)
    rate = {"evaluations_a_second": done / found.milliseconds, "speedup": peer.milliseconds / found.milliseconds}
    yield ImageRow("sampling", case, "ours", {**_figures(found, count, best), **rate}, words)


def our_loss_rows(work: ImageWork, watch: Watch) -> Iterator[ImageRow]:
    """The mean loss over the last quarter of the steps, as a run takes them."""
    return loss_rows(work, "ours", watch)


def sequential_loss_rows(work: ImageWork, watch: Watch) -> Iterator[ImageRow]:
    """The same in float32 with silos asked in turn: the same images, noises and times in every step."""
    return loss_rows(work, "sequential", watch)


PARTS: dict[str, Callable[[ImageWork, Watch], Iterator[ImageRow]]] = {
    "step": step_rows,
    "sampling": sampling_rows,
    "loss-ours": our_loss_rows,
    "loss-sequential": sequential_loss_rows,
}


def _peer_step(work: ImageWork, case: Case) -> tuple[Timed, str]:
    peer = PlainTraining(work, case)
    with tuned():
        return _timed(work, peer.step), peer.network.words


def _our_step(work: ImageWork, case: Case, method: str) -> tuple[Timed, str]:
    ours = OurTraining(work, case, method)
    return _timed(work, ours.step), ours.compiled_words()


def _peer_sampling(work: ImageWork, x0: Tensor) -> tuple[Timed, str]:
    field = PlainNetwork(work)
    field.module.eval()
    with tuned():
        return _timed(work, lambda: plain_sample(field, x0, work.evaluations)), field.words


def _our_sampling(work: ImageWork, x0: Tensor) -> tuple[Timed, str]:
    velocity = our_velocity(work)
    velocity.prepare(x0, work.samples * work.evaluations)
    found = _timed(work, lambda: integrate(velocity, x0, work.evaluations))
    return found, words_of(velocity.settings, work.device, [velocity.module])


def _timed(work: ImageWork, task: Callable[[], object]) -> Timed:
    release(work.device)  # what the one before has left
    return timed(task, work.device, work.steps, work.turns, work.seconds, work.warm_up)


def _figures(found: Timed, count: int, best: Roofline) -> dict[str, float | None]:
    """Times and memory, and the arithmetic rate beside the best that was measured."""
    rate = count / found.milliseconds * 1000
    return {
        "milliseconds": found.milliseconds,
        "gibibytes": found.gibibytes,
        "teraflops": rate / 1e12,
        "of_roofline": rate / best.rate,
        "least_milliseconds": best.least(count),
    }


def _roofline_row(best: Roofline) -> ImageRow:
    return ImageRow("roofline", f"product of {best.size}", best.precision, {"teraflops": best.rate / 1e12})
