"""Samples from a trained run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from anabranch.coupling import Source
from anabranch.data import Cloud, Encoder, Table, shape
from anabranch.errors import CheckpointError, UsageError
from anabranch.flow import Flow, integrate
from anabranch.methods.ffm import FlowMatching, FlowServer
from anabranch.runs._build import source_points
from anabranch.runs._config import Config
from anabranch.runs._folder import RunFolder
from anabranch.runs._sample_drawing import (
    Computing,
    Drawing,
    Sampling,
    check_solver,
    facts_of,
    last_checkpoint,
    tell_of_what_is_to_come,
)
from anabranch.runs._sample_noise import noise_of

ADAPTIVE = "dopri5"
ADAPTIVE_NFE = 100  # about what it takes, to know beforehand whether compiling pays


def draw_samples(run: Path, count: int, nfe: int | None, solver: str = "euler", seed: int = 0) -> Flow:
    """`count` samples of the run's averaged model as of its last checkpoint, all at once on the CPU; needs no data but
    the run folder. `open_flow` draws them a batch at a time."""
    drawing = open_flow(run, count, Sampling(nfe, solver, seed), Computing(count, "cpu"))
    return drawing.follow(drawing.noise(0, count), 0)


def open_flow(run: Path, count: int, sampling: Sampling, computing: Computing | None = None) -> Drawing:
    """`count` samples of the same model, to be drawn a batch at a time, where and as `computing` says."""
    computing, folder = computing or Computing(), RunFolder(run)
    config = folder.config()
    if config.composes:
        raise UsageError(f"{run} ran '{config.method}', which composes attributes; sample it with draw_composed.")
    check_solver(sampling.nfe, sampling.solver)
    checkpoint = last_checkpoint(folder)
    if not int(checkpoint.state["flow/steps"]):
        raise CheckpointError(
            f"At round {checkpoint.round} the flow of {run} is untrained: other things come before it. Go on with"
            f" 'anabranch resume {run}', then sample."
        )
    tell_of_what_is_to_come(folder, checkpoint)
    shape_of_images, dimension = tuple(config.images.shape), int(checkpoint.facts["dimension"])
    device = computing.place(bool(shape_of_images))
    settings = _settings(config.settings, computing, sampling.solver, device)
    velocity = FlowServer.velocity_of(settings, dimension, _cast(checkpoint.state, settings.flow.dtype), device)
    batch = computing.at_once(count, bool(shape_of_images), device)
    half = next(iter(velocity.parameters.values())).dtype is torch.bfloat16
    precision = "float32" if settings.flow.precision == "bfloat16" and not half else settings.flow.precision

    def prepare() -> None:
        if device.type == "cuda":  # a CPU has nothing to get ready
            evaluations = count * (ADAPTIVE_NFE if sampling.nfe is None else sampling.nfe)
            velocity.prepare(torch.zeros(batch, dimension, device=device), evaluations)

    return Drawing(
        count,
        batch,
        noise_of(_source(config, dimension), count, sampling.seed),
        lambda x0, start: integrate(velocity, x0.to(device), sampling.nfe, sampling.solver),
        lambda x: _table(run, x),
        shape_of_images,
        facts={**facts_of(folder, checkpoint, sampling), "precision": precision},
        notes=(_no_half(settings, device),) if precision != settings.flow.precision else (),
        prepare=prepare,
    )


def _source(config: Config, dimension: int) -> Source:
    given = source_points(config)
    return shape(config.flow.source, dimension) if given is None else Cloud(given)


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


def _cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The averaged parameters in this type, which may not be the one they were trained in."""
    kept = {name: tensor for name, tensor in state.items() if name.startswith("average/")}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in kept.items()}


def _no_half(settings: FlowMatching, device: torch.device) -> str:
    why = f"this {'GPU' if device.type == 'cuda' else 'CPU'} does not compute networks of images with it"
    if not settings.images.shape:
        why = "it is for networks of images"
    return f"The precision 'bfloat16' is not used, because {why}; samples are computed in float32."


def _table(run: Path, x: Tensor) -> Table:
    encoder = run / "encoder.json"
    if encoder.exists():
        return Encoder.from_json(encoder.read_text()).decode(x)
    return Table({f"x{i + 1}": [f"{value:.6g}" for value in column] for i, column in enumerate(x.T.tolist())})
