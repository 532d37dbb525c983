"""How long do the stages of `dcfm-cmnist` take on this machine? Milliseconds a step, and microseconds a sampled row.

    PYTHONPATH=src python benchmarks/composition_images.py --channels 64 --patch 2 --steps 200
    PYTHONPATH=src python benchmarks/composition_images.py --multipliers 1 2 4 --compile
    PYTHONPATH=src python benchmarks/composition_images.py --same

Every stage runs as the recipe runs it, with its sizes, on noise instead of images: Stage I without and with the
penalty, in turn and together; rounds of FedFlow; a turn of DCFM-A; a student; and samples. On a GPU, experts that train
together run side by side; `--same` trains a few together and in turn, and says how far apart they end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from anabranch import seeds
from anabranch.data.attributes import COLORED, band
from anabranch.errors import DataError
from anabranch.federation import Federation, Silo
from anabranch.methods.dcfm import ComposedFlow, train_composition
from anabranch.metrics import Inception
from anabranch.recipes import recipe

SHAPE = (3, 28, 28)
PLENTY = 2**60  # of work and memory: this machine is ours


def silos(count: int, device: torch.device) -> list[Silo]:
    """Noise with the labels of observed combinations."""
    generator, known = seeds.generator(0, "noise"), band(COLORED, 5).nonzero()[:, 0]
    found = []
    for number in range(count):
        label = known[torch.randint(len(known), (4000,), generator=generator)]
        silo = Silo(f"silo-{number:02d}", torch.randn(4000, 2352, generator=generator).to(device), label, space=COLORED)
        silo.most_work = silo.most_numbers = PLENTY
        found.append(silo)
    return found


def timed(device: torch.device, count: int, method: str, fused: bool, **sections: Any) -> tuple[ComposedFlow, dict]:
    """The flow, and the seconds of each phase after its first round, in which things are compiled and recorded."""
    marks: list[tuple[str, float]] = []

    def note(progress: Any) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks.append((progress.phase, time.perf_counter()))

    flow = train_composition(Federation(silos(count, device), fused=fused), method, force=True, watch=note, **sections)
    spans: dict[str, float] = {}
    for (_, before), (phase, after) in pairwise(marks):
        spans[phase] = spans.get(phase, 0.0) + after - before
    return flow, spans


def stages(options: dict[str, Any], count: int, device: torch.device, steps: int) -> Iterator[tuple[str, float]]:
    """Names with milliseconds of one step of one silo (of the student: of one step)."""
    every = max(10, steps // 4)
    experts = {**options["experts"], "shape": SHAPE, "steps": steps}
    later = steps - every
    for name, method, penalty in (("plain", "ddm", 0.0), ("with the penalty", "ddm+l", options["penalty"])):
        for together in (False, True):
            sections = {"experts": {**experts, "penalty": penalty}, "every": every}
            silos_now = count if together else 2
            _, spans = timed(device, silos_now, method, together, **sections)
            way = f"{count} together" if together else "in turn"
            yield f"Stage I {name}, {way}", 1000 * spans["experts"] / (later * silos_now)
    federated = {"rounds": 2 + later // 25, "local_steps": 25}
    _, spans = timed(device, count, "fedflow", True, experts=experts, federated=federated)
    yield f"FedFlow, {count} together", 1000 * spans["federated"] / (25 * (federated["rounds"] - 1) * count)
    few = {**experts, "steps": 10, "penalty": options["penalty"]}
    peers = {**options["peers"], "rounds": 1, "steps": 20, "penalty": options["penalty"]}
    flow, spans = timed(device, count, "dcfm-a", True, experts=few, every=10, peers=peers)
    yield "DCFM-A, in turn", 1000 * spans["peers"] / (20 * count)
    for name, method, penalty in (("DCFM-B", "dcfm-b", options["penalty"]), ("additive", "additive", 0.0)):
        student = {**options["student"], "steps": steps, "penalty": penalty, "refresh": steps}
        _, spans = timed(device, count, method, True, experts=few, every=every, student=student)
        yield f"student, {name} (after its paths)", 1000 * spans["student"] / steps
    y = COLORED.combinations().repeat(25, 1).to(device)
    generator = torch.Generator(device).manual_seed(0)
    for how in ("joint", "composed"):
        flow.mixture.sample(y[:100], generator, 2, how=how, dimension=2352)
        begun = time.perf_counter()
        flow.mixture.sample(y, generator, 4, how=how, dimension=2352)
        if device.type == "cuda":
            torch.cuda.synchronize()
        yield f"µs a sample and evaluation, {count} experts, {how}", 1e6 * (time.perf_counter() - begun) / (4 * len(y))


def same(options: dict[str, Any], count: int, device: torch.device, steps: int = 60) -> Iterator[tuple[str, float]]:
    """How far experts that train together end from those that train in turn, relative to their size.

    The order of sums differs, so it is not zero; what a wrong pass would do is of the size of one.
    """
    for compared in (1.0, 0.25):
        chosen = {"shape": SHAPE, "steps": steps, "penalty": options["penalty"], "compared": compared}
        experts, found = {**options["experts"], **chosen}, {}
        for together in (True, False):
            flow, _ = timed(device, count, "ddm+l", together, experts=experts, every=steps // 3)
            found[together] = flow.experts
            losses = [float(progress.metrics["loss"]) for progress in flow.history]
            way = "together" if together else "in turn"
            yield f"last loss, {way}, penalty on {compared:g} of a batch", losses[-1]
        for silo in list(found[True])[:2]:
            one, other = (torch.cat([t.flatten() for t in found[way][silo].values()]) for way in (True, False))
            yield f"relative difference, {silo}, penalty on {compared:g}", float((one - other).norm() / other.norm())


def inception(device: torch.device, batch: int) -> Iterator[tuple[str, float]]:
    """Milliseconds an image; nothing where there are no weights, or where it would take minutes."""
    if device.type == "cpu":
        return
    pixels = torch.randint(256, (4 * batch, *SHAPE), dtype=torch.uint8)
    try:
        network = Inception.load(None, device)
    except DataError:
        return
    network.features(pixels[:batch], batch)
    begun = time.perf_counter()
    network.features(pixels, batch)
    yield "Inception, an image", 1000 * (time.perf_counter() - begun) / len(pixels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--channels", type=int, default=0, help="of the UNet; the recipe's by default")
    parser.add_argument("--patch", type=int, default=0)
    parser.add_argument("--multipliers", type=int, nargs="+", default=[], help="of its levels")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help="let torch compile it")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--silos", type=int, default=10)
    parser.add_argument("--same", action="store_true", help="compare experts trained together with those in turn")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    options = recipe("dcfm-cmnist").options("iid", "dcfm-b", "small")
    changed = ("channels", "patch", "multipliers", "compile")
    for name in changed:
        if getattr(arguments, name) not in (None, 0, []):
            options["experts"][name] = getattr(arguments, name)
    print(json.dumps({name: options["experts"].get(name) for name in (*changed, "batch", "precision")}))
    if arguments.same:
        for name, value in same(options, min(6, arguments.silos), device):
            print(f"{name:60s} {value:9.5f}", flush=True)
        return
    for name, value in inception(device, options["inception"]["batch"]):
        print(f"{name:60s} {value:9.3f}", flush=True)
    for name, value in stages(options, arguments.silos, device, arguments.steps):
        print(f"{name:60s} {value:9.3f}", flush=True)


if __name__ == "__main__":
    main()
