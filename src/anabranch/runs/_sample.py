"""Samples from a trained run, and the forms they can be written in."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Cloud, Encoder, Table, shape
from anabranch.errors import CheckpointError, RunFolderError, UsageError
from anabranch.federation import write_atomically
from anabranch.flow import Flow, integrate
from anabranch.methods.ffm import FlowServer
from anabranch.runs._build import source_points
from anabranch.runs._folder import RunFolder

FORMS = (".npy", ".csv", ".png")


def draw_samples(run: Path, count: int, nfe: int | None, solver: str = "euler", seed: int = 0) -> Flow:
    """`count` samples of the run's averaged model as of its last checkpoint; needs no data but the run folder."""
    folder = RunFolder(run)
    config = folder.config()
    if config.composes:
        raise UsageError(f"{run} ran '{config.method}', which composes attributes; sample it with draw_composed.")
    checkpoint, warnings = folder.load_checkpoint()
    if checkpoint is None:
        raise CheckpointError(" ".join(warnings) or f"{run} has no checkpoint yet; train or resume the run first.")
    dimension = int(checkpoint.facts["dimension"])
    given = source_points(config)
    source = shape(config.flow.source, dimension) if given is None else Cloud(given)
    velocity = FlowServer.velocity_of(config.settings, dimension, checkpoint.state)
    return integrate(velocity, source.points(count, seeds.generator(seed, "sample")), nfe, solver)


def save_samples(run: Path, x: Tensor, out: Path, picture: Callable[[], bytes] | None = None) -> None:
    """Writes samples as .npy, .png, or .csv: in the table's own columns and units, where the run has an encoder.

    `picture` draws them where a scatter of their first coordinates would not do.
    """
    write_samples(x, out, lambda: _table(run, x), picture or (lambda: _picture(x)))


def write_samples(x: Tensor, out: Path, table: Callable[[], Table], picture: Callable[[], bytes]) -> None:
    """Writes samples in the form that the file's name asks for; a table or a picture of them is made when needed."""
    if out.suffix not in FORMS:
        raise UsageError(f"Samples cannot be written as '{out.suffix}'; choose one of {', '.join(FORMS)}.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".npy":
            np.save(out, x.numpy(), allow_pickle=False)
        elif out.suffix == ".csv":
            table().write(out)
        else:
            write_atomically(out, picture())
    except OSError as error:
        raise RunFolderError(f"{out} could not be written ({error.strerror}).") from error


def _table(run: Path, x: Tensor) -> Table:
    encoder = run / "encoder.json"
    if encoder.exists():
        return Encoder.from_json(encoder.read_text()).decode(x)
    return Table({f"x{i + 1}": [f"{value:.6g}" for value in column] for i, column in enumerate(x.T.tolist())})


def _picture(x: Tensor) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(x[:, 0], x[:, 1] if x.shape[1] > 1 else torch.zeros(len(x)), s=4, alpha=0.5, linewidths=0)
    axes.set_aspect("equal")
    axes.set_title(f"{len(x)} samples" + (" (first two coordinates)" if x.shape[1] > 2 else ""))
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
