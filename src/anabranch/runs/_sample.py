"""Samples of a trained flow: of a run, or of a model that was handed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.data import Encoder, Table
from anabranch.errors import UsageError
from anabranch.flow import Flow, Velocity, integrate
from anabranch.methods.ffm import FlowMatching, FlowServer
from anabranch.runs._sample_drawing import Computing, Drawing, Sampling, check_solver, how_drawn
from anabranch.runs._sample_noise import noise_of
from anabranch.runs._trained import trained_flow

ADAPTIVE = "dopri5"
ADAPTIVE_NFE = 100  # about what it takes, to know beforehand whether compiling pays


def draw_samples(run: Path, count: int, nfe: int | None, solver: str = "euler", seed: int = 0) -> Flow:
    """`count` samples of the run's averaged model as of its last checkpoint, or of an exported one, all at once on the
    CPU; needs no data but the folder. `open_flow` draws them a batch at a time."""
    drawing = open_flow(run, count, Sampling(nfe, solver, seed), Computing(count, "cpu"))
    return drawing.follow(drawing.noise(0, count), 0)


def open_flow(
    run: Path, count: int, sampling: Sampling, computing: Computing | None = None, of_class: str = ""
) -> Drawing:
    """`count` samples of the same model, to be drawn a batch at a time, where and as `computing` says.

    Of a flow that is told classes `of_class` is the number of one, "each" for all in turn, or empty: none is given.
    """
    computing, flow = computing or Computing(), trained_flow(run)
    check_solver(sampling.nfe, sampling.solver)
    shape_of_images, dimension = tuple(flow.settings.images.shape), flow.dimension
    device = computing.place(bool(shape_of_images))
    settings = _settings(flow.settings, computing, sampling.solver, device)
    velocity = FlowServer.velocity_of(settings, dimension, _cast(flow.state, settings.flow.dtype), device)
    batch = computing.at_once(count, bool(shape_of_images), device)
    half = next(iter(velocity.parameters.values())).dtype is torch.bfloat16
    precision = "float32" if settings.flow.precision == "bfloat16" and not half else settings.flow.precision

    labels = _labels(of_class, settings.flow.classes, count)
    weight, until = (sampling.weights or [1.0])[0], sampling.until

    def told(rows: slice) -> Velocity:
        return velocity.of_class(None if labels is None else labels[rows], weight, until)

    told(slice(0))  # refuses before anything is begun

    def follow(x0: Tensor, start: int) -> Flow:
        return integrate(told(slice(start, start + len(x0))), x0.to(device), sampling.nfe, sampling.solver)

    def prepare() -> None:
        if device.type == "cuda":  # a CPU has nothing to get ready
            evaluations = count * (ADAPTIVE_NFE if sampling.nfe is None else sampling.nfe) * (1 if weight == 1 else 2)
            velocity.prepare(torch.zeros(batch, dimension, device=device), evaluations)

    return Drawing(
        count,
        batch,
        noise_of(flow.source, count, sampling.seed),
        follow,
        lambda x: _table(flow.encoder, x),
        shape_of_images,
        {} if labels is None else {"label": labels.tolist()},
        facts={**flow.facts, **how_drawn(sampling), "precision": precision, **_asked(sampling, of_class)},
        notes=(_no_half(settings, device),) if precision != settings.flow.precision else (),
        prepare=prepare,
    )


def _settings(settings: FlowMatching, computing: Computing, solver: str, device: torch.device) -> FlowMatching:
    """The run's settings, computed in another way."""
    precision = computing.precision or settings.flow.precision
    if solver == ADAPTIVE and precision == "bfloat16":  # it would take rounding for errors of its steps
        if computing.precision:
            raise UsageError(
                f"{ADAPTIVE} needs numbers of 32 bits to measure its errors; take float32, or steps of rk4."
            )
        precision = "float32"
    chosen = settings.flow.compile if computing.compile is None else computing.compile
    compiled = chosen if device.type == "cuda" else False  # on a CPU it takes minutes that samples do not bring in
    return replace(settings, flow=replace(settings.flow, precision=precision, compile=compiled))


def _labels(of_class: str, classes: int, count: int) -> Tensor | None:
    """The class (count,) of each sample; None where none is asked for."""
    if not of_class:
        return None
    if not classes:
        raise UsageError("This flow is told no classes, and samples all of them; leave the class out.")
    if of_class == "each":
        return torch.arange(count) % classes
    if not of_class.isdecimal() or int(of_class) >= classes:
        raise UsageError(
            f"The class is '{of_class}'; give a number from 0 to {classes - 1}, or 'each' for all in turn."
        )
    return torch.full((count,), int(of_class))


def _asked(sampling: Sampling, of_class: str) -> dict[str, Any]:
    """What tells samples of a class from others."""
    if not of_class:
        return {}
    return {"class": of_class, "weights": list(sampling.weights or [1.0]), "until": sampling.until}


def _cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The averaged parameters in this type, which may not be the one they were trained in."""
    kept = {name: tensor for name, tensor in state.items() if name.startswith("average/")}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in kept.items()}


def _no_half(settings: FlowMatching, device: torch.device) -> str:
    why = f"this {'GPU' if device.type == 'cuda' else 'CPU'} does not compute networks of images with it"
    if not settings.images.shape:
        why = "it is for networks of images"
    return f"The precision 'bfloat16' is not used, because {why}; samples are computed in float32."


def _table(encoder: Encoder | None, x: Tensor) -> Table:
    if encoder is not None:
        return encoder.decode(x)
    return Table({f"x{i + 1}": [f"{value:.6g}" for value in column] for i, column in enumerate(x.T.tolist())})
