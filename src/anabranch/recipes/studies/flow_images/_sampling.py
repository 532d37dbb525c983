"""Samples of a flow of images, all methods from the same noise, at a counted price."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.flow import Velocity, integrate
from anabranch.methods.ffm import FlowServer, FlowVelocity
from anabranch.metrics import to_bytes
from anabranch.recipes.studies.flow_images._memory import spared_option
from anabranch.runs import Config, RunFolder, device_of

ADAPTIVE = "dopri5"
ADAPTIVE_NFE = 100  # about what it takes, to know beforehand whether compiling pays
BLOCK = 100  # images whose noise has a generator of its own


@dataclass(frozen=True)
class Drawn:
    """Images (n, c, h, w) of bytes on the CPU, evaluations of the velocity for each, and seconds for all of them."""

    images: Tensor
    evaluations: float
    seconds: float


def sampled(
    velocity: Velocity, config: Config, seed: int, options: Mapping[str, Any], nfe: int | None, device: torch.device
) -> Drawn:
    """`count` images, `batch` at once, with `nfe` evaluations of the `solver`; None: of dopri5, which takes its own.

    All methods of a seed begin from the same noise, however many are sampled at once. dopri5 takes the same steps for
    all images of a batch, and not the same for the next, so that its evaluations are a mean. The clock runs from the
    first noise to the last byte.
    """
    colours, height, width = config.images.shape
    begun, parts, evaluations = time.perf_counter(), [], 0
    with spared_option("sampling.batch", options["batch"], "images were sampled"):
        for start in range(0, options["count"], options["batch"]):
            rows = min(options["batch"], options["count"] - start)
            x0 = noise(seed, start, rows, colours * height * width, device)
            flow = integrate(velocity, x0, nfe, ADAPTIVE if nfe is None else options["solver"])
            parts.append(to_bytes(flow.x1.clamp(-1, 1), (colours, height, width)).cpu())
            evaluations += flow.evaluations * rows
    return Drawn(torch.cat(parts), evaluations / options["count"], time.perf_counter() - begun)


def noise(seed: int, start: int, rows: int, dimension: int, device: torch.device) -> Tensor:
    """Rows (rows, dimension) of a seed's noise, from number `start` on; the same in whichever parts they are drawn."""
    blocks = range(start // BLOCK, -(-(start + rows) // BLOCK))
    generators = (seeds.generator(seed, "noise", block, device=device) for block in blocks)
    drawn = [torch.randn(BLOCK, dimension, generator=generator, device=device) for generator in generators]
    return torch.cat(drawn)[start % BLOCK :][:rows]


def make_ready(
    velocity: FlowVelocity, config: Config, options: Mapping[str, Any], steps: Sequence[int | None]
) -> FlowVelocity:
    """The velocity, ready for samples with each of these numbers of steps: whether compiling pays follows from all of
    them, and it is done before a clock runs."""
    colours, height, width = config.images.shape
    rows = min(options["batch"], options["count"])
    evaluations = options["count"] * sum(ADAPTIVE_NFE if nfe is None else nfe for nfe in steps)
    with spared_option("sampling.batch", options["batch"], "images were sampled"):
        velocity.prepare(torch.zeros(rows, colours * height * width, device=velocity.device), evaluations)
    return velocity


def velocity_of(folder: Path, config: Config, precise: bool = False) -> tuple[FlowVelocity, torch.device]:
    """The averaged flow of a finished run, where it is computed.

    `precise` computes it in 32 bits, all of them, whatever it was trained in: dopri5 would take the rounding of 16 bits
    for errors of its steps, and make them ever smaller.
    """
    checkpoint, _ = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    device, settings = device_of(config), config.settings
    if precise:
        settings = replace(settings, flow=replace(settings.flow, precision="float32"))
    dimension = int(checkpoint.facts["dimension"])
    return FlowServer.velocity_of(settings, dimension, checkpoint.state, device, exact=precise), device
