"""Samples that are drawn a batch at a time, and what they are samples of."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from anabranch.data import Table
from anabranch.errors import CheckpointError, UsageError, spared, unknown
from anabranch.flow import Flow, integrate
from anabranch.runs._folder import Checkpoint, RunFolder
from anabranch.runs._sample_noise import Noise
from anabranch.runs._sections import DEVICES

PRECISIONS = ("float32", "bfloat16")
IMAGES_AT_ONCE = {"cuda": 512, "cpu": 64}  # where no number is given: memory for them is there, and more is not faster
POINTS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Sampling:
    """How to sample: function evaluations (None: an adaptive solver's own choice), the solver, the seed of the noise;
    joint, guided or composed; how strongly attributes count unless they are joint; and when that ends."""

    nfe: int | None = 50
    solver: str = "midpoint"
    seed: int = 0
    how: str = "auto"
    weights: Sequence[float] | None = None
    until: float = 1.0


@dataclass(frozen=True)
class Computing:
    """How samples are computed: `batch` at a time (0: a usual number), on which `device` ("auto": a GPU for images
    where there is one), in which `precision` (empty: the run's own), and compiled or not (None: where it pays)."""

    batch: int = 0
    device: str = "auto"
    precision: str = ""
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise UsageError(f"A batch of {self.batch} samples was asked for; it must have at least one.")
        if self.device not in DEVICES:
            raise unknown("device", self.device, DEVICES)
        if self.precision and self.precision not in PRECISIONS:
            raise unknown("precision to sample in", self.precision, PRECISIONS)

    def place(self, images: bool) -> torch.device:
        """The device, for samples that are images or not."""
        name = self.device
        if name == "cuda" and not torch.cuda.is_available():
            raise UsageError("The device is 'cuda', and there is no GPU here that torch can use; take 'auto' or 'cpu'.")
        if name == "auto":
            name = "cuda" if images and torch.cuda.is_available() else "cpu"
        if self.compile and name == "cpu":
            raise UsageError("Compiling pays on a GPU, and these samples are computed on the CPU; do without it.")
        return torch.device(name)

    def at_once(self, count: int, images: bool, device: torch.device) -> int:
        """How many of `count` samples are computed together."""
        usual = IMAGES_AT_ONCE[device.type] if images else POINTS_AT_ONCE
        return max(1, min(count, self.batch or usual))


@dataclass(frozen=True)
class Drawing:
    """`count` samples, drawn `batch` at a time: `noise` says where they begin, `follow` takes the points from number
    `start` on to where they arrive.

    `table` decodes rows for a file of text; images have a `shape` (channels, height, width); `attributes` has what was
    asked of each sample, and a table has beside its `columns`. `facts` tell these samples from others, `notes` say what
    is not as it was asked for. `prepare` does what takes its time once.
    """

    count: int
    batch: int
    noise: Noise
    follow: Callable[[Tensor, int], Flow]
    table: Callable[[Tensor], Table]
    shape: tuple[int, ...] = ()
    attributes: Mapping[str, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    prepare: Callable[[], None] = lambda: None

    def parts(self, start: int = 0) -> Iterator[Flow]:
        """The samples from number `start` on, a batch at a time, on the device that computed them.

        Noise is drawn on the CPU, where a seed means the same everywhere: the next while a GPU works on this.
        """
        starts = range(start, self.count, self.batch)
        noises = (self.noise(first, min(first + self.batch, self.count)) for first in starts)
        x0 = next(noises, None)
        for first in starts:
            assert x0 is not None
            flow = self.follow(x0, first)
            x0 = next(noises, None)  # a GPU is asked for the flow by now, and has not done it yet
            yield flow


class Writer(Protocol):
    """Where samples go: those before number `start` are there already."""

    start: int

    def add(self, x: Tensor) -> None:
        """The next ones, rows (n, d) on any device."""
        ...

    def finish(self, evaluations: float) -> None:
        """All were added; the file is made whole."""
        ...


@dataclass(frozen=True)
class Written:
    """How many samples were `drawn`, the `evaluations` of the velocity that each took, and `seconds` for all.

    dopri5 takes the same steps for all samples of a batch, and not the same for the next: its evaluations are a mean.
    """

    drawn: int
    evaluations: float
    seconds: float


def write_drawing(drawing: Drawing, writer: Writer, watch: Callable[[int], None] = lambda done: None) -> Written:
    """Draws samples and hands them to the writer as they come; `watch` hears how many are there.

    The clock runs from the first noise to the last byte, and not while a network is compiled.
    """
    with spared(lambda: exhausted(drawing.batch)):
        if writer.start < drawing.count:
            drawing.prepare()
        begun, done, evaluations = time.perf_counter(), writer.start, 0
        for flow in drawing.parts(writer.start):
            writer.add(flow.x1)
            done += len(flow.x1)
            evaluations += flow.evaluations * len(flow.x1)
            watch(done)
        drawn = done - writer.start
        mean = evaluations / max(drawn, 1)
        writer.finish(mean)
    return Written(drawn, mean, time.perf_counter() - begun)


def check_solver(nfe: int | None, solver: str) -> None:
    """Refuses a solver that there is not, or a number of evaluations that it cannot take, before anything is begun."""
    integrate(lambda x, t: x, torch.zeros(1), nfe, solver)


def last_checkpoint(folder: RunFolder) -> Checkpoint:
    """The newest sound one, which is what samples are of; a warning tells of any that had to be passed over."""
    checkpoint, passed = folder.load_checkpoint()
    if checkpoint is None:
        words = " ".join(passed) or f"{folder.path} has no checkpoint yet; train or resume the run first."
        raise CheckpointError(words)
    for sentence in passed:
        warnings.warn(sentence, stacklevel=3)
    return checkpoint


def check_columns(columns: Sequence[str], attributes: Iterable[str]) -> None:
    """Refuses a table in which an attribute would take the place of a coordinate."""
    if both := [name for name in attributes if name in columns]:
        raise UsageError(f"An attribute is called '{both[0]}', as a coordinate is in a table; write .npz.")


def tell_of_what_is_to_come(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Warns that samples are of a run that has not come to its end."""
    if not folder.finished:
        warnings.warn(
            f"{folder.path} has not finished: these are samples as of round {checkpoint.round};"
            f" {folder.again} goes on with it.",
            stacklevel=3,
        )


def which(folder: RunFolder, checkpoint: Checkpoint) -> dict[str, Any]:
    """What tells samples of a run from others: which run, and when."""
    identity = folder.path / "identity"  # read only: sampling changes nothing in a run folder
    return {"run": identity.read_text() if identity.exists() else folder.path.name, "round": checkpoint.round}


def how_drawn(sampling: Sampling) -> dict[str, Any]:
    """What tells samples of the same model apart."""
    return {"solver": sampling.solver, "nfe": sampling.nfe, "seed": sampling.seed}


def exhausted(batch: int) -> str:
    """What to lower where memory does not suffice."""
    return (
        f"Memory ran out while samples were drawn, {batch} at a time. Give a smaller --batch, as in --batch"
        f" {max(1, batch // 2)}, or have other programs leave more memory, and give the same command again."
    )
