"""Samples of chosen attributes from a run that composes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Table
from anabranch.data.attributes import NULL, AttributeSpace, Coverage
from anabranch.errors import CheckpointError, UsageError
from anabranch.flow import Flow
from anabranch.methods.experts import check_weights
from anabranch.runs._evaluate_composition import possible
from anabranch.runs._folder import RunFolder
from anabranch.runs._stored import Stored, stored_mixture


@dataclass(frozen=True)
class ComposedSamples:
    """Samples `x` (n, d) with the attributes (n, k) they were asked for; images have a `shape`."""

    x: Tensor
    codes: Tensor
    evaluations: int
    coverage: Coverage
    shape: tuple[int, ...]

    @property
    def space(self) -> AttributeSpace:
        """Which attributes there are."""
        return self.coverage.space

    def table(self) -> Table:
        """Coordinates and attributes as columns; an attribute that was left open has none."""
        columns = {f"x{i + 1}": [f"{value:.6g}" for value in column] for i, column in enumerate(self.x.T.tolist())}
        for place, (name, outcomes) in enumerate(self.space.attributes):
            columns[name] = ["" if code == NULL else outcomes[code] for code in self.codes[:, place].tolist()]
        return Table(columns)


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


def draw_composed(run: Path, attributes: str, count: int, sampling: Sampling | None = None) -> ComposedSamples:
    """`count` samples with these attributes, as in "digit=0,color=yellow"; what is not named is left open."""
    stored = open_composition(run)
    codes = stored.coverage.space.parse(attributes).expand(count, -1)
    return drawn(stored, codes, sampling or Sampling())


def draw_every(
    run: Path, each: int | None = None, sampling: Sampling | None = None, most: int | None = None
) -> ComposedSamples:
    """`each` samples of every combination of which all outcomes have been met, in the order of the labels.

    By default one, where samples are images, and otherwise 64. More than `most` combinations are refused.
    """
    stored = open_composition(run)
    if most is not None and len(stored.coverage.space) > most:
        raise UsageError(
            f"There are {len(stored.coverage.space)} combinations, too many for one picture; sample chosen attributes."
        )
    each = each or (1 if stored.shape else 64)
    label = possible(stored.coverage).repeat_interleave(each)
    return drawn(stored, stored.coverage.space.decode(label), sampling or Sampling())


def open_composition(run: Path) -> Stored:
    """The field of a run's last checkpoint; needs no data but the run folder."""
    folder = RunFolder(run)
    config = folder.config()
    if not config.composes:
        raise UsageError(
            f"{run} ran '{config.method}', which knows no attributes; sample it without --attributes, --grid, --how"
            " and --weights."
        )
    checkpoint, warnings = folder.load_checkpoint()
    if checkpoint is None:
        raise CheckpointError(" ".join(warnings) or f"{run} has no checkpoint yet; train or resume the run first.")
    return stored_mixture(config, checkpoint)


def drawn(stored: Stored, codes: Tensor, sampling: Sampling) -> ComposedSamples:
    check_weights(stored.coverage.space, sampling.how, sampling.weights, sampling.until)
    generator = seeds.generator(sampling.seed, "sample")
    with torch.no_grad():
        flow: Flow = stored.mixture.sample(
            *(codes, generator, sampling.nfe, sampling.solver, sampling.how, sampling.weights),
            dimension=stored.dimension,
            until=sampling.until,
        )
    return ComposedSamples(flow.x1, codes, flow.evaluations, stored.coverage, stored.shape)
