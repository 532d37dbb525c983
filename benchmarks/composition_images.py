"""How long do the stages of `dcfm-cmnist` take on this machine? Milliseconds a step, and minutes for a partition.

    PYTHONPATH=src python benchmarks/composition_images.py --device cuda --channels 32,64 --batch 128,256

Every stage is timed on its own code: Stage I without and with the penalty (a step of FedFlow is the same), a step of
DCFM-A, a step of a student, plain and additive, rows that experts evaluate while sampling, images through Inception.
From these follow the minutes that the recipe's `small` scale takes for one partition with all ten methods.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.data.attributes import COLORED
from anabranch.errors import DataError
from anabranch.flow.conditioning import Field, single_masks
from anabranch.methods.dcfm._peers import peer_losses, routed
from anabranch.methods.experts import ExpertSettings, Learner, bind, example, expert_network, losses
from anabranch.metrics import Inception
from anabranch.recipes import recipe

SHAPE = (3, 28, 28)
DIMENSION, IMAGES = 3 * 28 * 28, 4000
CELLS, EXPERT_METHODS, ONE_FLOW = 11, 5, 5  # the real images are a cell too


class Clock:
    """Times a step: the median of some after others that warm up."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def __call__(self, step: Callable[[], object]) -> float:
        found = []
        for turn in range(self.repeats + 3):
            begun = time.perf_counter()
            step()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:
                found.append(time.perf_counter() - begun)
        return 1000 * sorted(found)[len(found) // 2]


@dataclass(frozen=True)
class Bench:
    """A network in training, on made-up images."""

    settings: ExpertSettings
    module: nn.Module
    learner: Learner
    x1: Tensor
    codes: Tensor
    generator: torch.Generator

    @staticmethod
    def of(settings: ExpertSettings, network: str, device: torch.device) -> Bench:
        """With images and labels that follow from a seed."""
        generator = torch.Generator(device).manual_seed(0)
        module = expert_network(settings, DIMENSION, COLORED.sizes, 0, network).to(device)
        start = {name: parameter.detach() for name, parameter in module.named_parameters()}
        x1 = torch.randn(IMAGES, DIMENSION, generator=generator, device=device)
        codes = COLORED.combinations()[torch.arange(IMAGES) % len(COLORED)].to(device)
        return Bench(settings, module, Learner(start, settings.rule(10**6), 0.99), x1, codes, generator)

    @property
    def field(self) -> Field:
        """The network as it stands."""
        return bind(self.module, self.learner.parameters, self.settings)

    def step(self) -> None:
        """A step of Stage I, of FedFlow, or of a student."""
        value = losses(self.field, example(self.x1, self.codes, self.settings, self.generator))
        self.learner.descend(value.matching + self.settings.penalty * value.independence)

    def step_beside(self, peer: Field) -> None:
        """A step of DCFM-A beside a peer that has met everything."""
        batch = example(self.x1, self.codes, self.settings, self.generator)
        met = torch.ones(len(batch.y), 2, dtype=torch.bool, device=self.x1.device)
        weight = self.settings.masking.masks(2)[1].tolist()
        route = routed(met, self.generator)
        made = peer_losses(self.field, peer, batch, single_masks(2, self.x1.device), route, weight)
        self.learner.descend(made.losses.matching + made.losses.independence)


def stages(settings: ExpertSettings, rows: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds of one step of each stage; of sampling, microseconds a row that a network evaluates."""
    clock = Clock(device, repeats)
    plain = Bench.of(settings, "", device)
    penalised = Bench.of(replace(settings, penalty=1.0), "", device)
    additive = Bench.of(settings, "additive-unet", device)
    peer = bind(plain.module, {name: t.detach().clone() for name, t in plain.learner.parameters.items()}, settings)
    place, half = torch.arange(rows, device=device) % IMAGES, torch.tensor(0.5, device=device)
    x, y = plain.x1[place], plain.codes[place]
    found = {"plain": clock(plain.step), "penalised": clock(penalised.step), "additive": clock(additive.step)}
    found["beside peers"] = clock(lambda: plain.step_beside(peer))
    with torch.no_grad():
        found["row, µs"] = 1000 * clock(lambda: peer(x, half, y)) / rows
    return found


def inception(device: torch.device, batch: int) -> dict[str, float]:
    """Milliseconds an image, in float32 and in TF32; nothing on a CPU, where it takes minutes, or without weights."""
    if device.type == "cpu":
        return {}
    pixels = torch.randint(256, (batch, *SHAPE), dtype=torch.uint8)
    found = {}
    for name, tf32 in (("float32", False), ("tf32", True)):
        try:
            look = Inception.load(None, device, tf32)
        except DataError:
            return {}
        found[f"inception, {name}"] = Clock(device, 3)(partial(look.features, pixels, batch)) / batch
    return found


def minutes(options: dict[str, Any], took: dict[str, float], student: dict[str, float]) -> dict[str, float]:
    """What one partition of the recipe takes, stage by stage; sampling for silos that all know all outcomes."""
    silos, steps, nfe = options["silos"], options["experts"]["steps"], options["sampling"]["nfe"]
    federated = options["federated"]["rounds"] * options["federated"]["local_steps"]
    peers = silos * options["peers"]["rounds"] * options["peers"]["steps"]
    pool = options["student"]["trajectories"] * (options["student"]["path_steps"] + 1)
    pools = -(-options["student"]["steps"] // options["student"]["refresh"])
    per_network = (4 * options["samples"] + options["unconditional"] + options["joint"]) * nfe
    looked_at = CELLS * (2 * options["samples"] + options["unconditional"])
    student_steps = sum(student[name] for name in ("plain", "penalised", "additive"))
    found = {
        "Stage I, both": silos * steps * (took["plain"] + took["penalised"]) / 1000,
        "FedFlow, both": silos * federated * (took["plain"] + took["penalised"]) / 1000,
        "DCFM-A": peers * took["beside peers"] / 1000,
        "students, three": options["student"]["steps"] * student_steps / 1000,
        "students' paths": pools * pool * (1 + 1 + 3 * silos) * took["row, µs"] / 1e6,
        "sampling": per_network * (EXPERT_METHODS * silos + ONE_FLOW) * took["row, µs"] / 1e6,
        "Inception": looked_at * took.get("inception, float32", 0) / 1000,
    }
    found["all"] = sum(found.values())
    return {name: seconds / 60 for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--channels", default="32")
    parser.add_argument("--batch", default="128,256")
    parser.add_argument("--rows", type=int, default=2500, help="rows of a pass while sampling")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--scale", default="small")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    options = recipe("dcfm-cmnist").options("iid", "dcfm-b", arguments.scale)
    extra = inception(device, options["inception"]["batch"])
    print(json.dumps({name: round(value, 3) for name, value in extra.items()}))
    for channels in map(int, arguments.channels.split(",")):
        took = {}
        for batch in map(int, arguments.batch.split(",")):
            chosen = {**options["experts"], "shape": SHAPE, "channels": channels, "batch": batch}
            took[batch] = stages(ExpertSettings(**chosen), arguments.rows, device, arguments.repeats)
            line = {name: round(value, 3) for name, value in took[batch].items()}
            print(json.dumps({"channels": channels, "batch": batch, **line}), flush=True)
        smallest, largest = min(took), max(took)
        parts = minutes(options, {**took[smallest], **extra}, took[largest])
        about = f"minutes with batches of {smallest}, students' of {largest}"
        print(json.dumps({"channels": channels, "scale": about, **{n: round(v, 2) for n, v in parts.items()}}))


if __name__ == "__main__":
    main()
