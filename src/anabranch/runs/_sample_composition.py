"""Samples of chosen attributes from a run that composes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Table
from anabranch.data.attributes import NULL, AttributeSpace, Coverage
from anabranch.errors import UsageError, spared
from anabranch.flow import Flow
from anabranch.methods.experts import check_weights
from anabranch.runs._evaluate_composition import possible
from anabranch.runs._exported import exported_at, is_exported, read_exported
from anabranch.runs._exported_composition import rebuilt_composition
from anabranch.runs._folder import RunFolder
from anabranch.runs._sample_drawing import (
    Computing,
    Drawing,
    Sampling,
    check_columns,
    check_solver,
    exhausted,
    how_drawn,
    last_checkpoint,
    tell_of_what_is_to_come,
    which,
)
from anabranch.runs._sample_noise import gaussian_noise
from anabranch.runs._stored import Stored, stored_mixture

_PLAIN = "knows no attributes; sample it without --attributes, --grid, --how and --weights."


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
        return _table(self.x, _words(self.space, self.codes))


def draw_composed(run: Path, attributes: str, count: int, sampling: Sampling | None = None) -> ComposedSamples:
    """`count` samples with these attributes, as in "digit=0,color=yellow"; what is not named is left open."""
    stored = open_composition(run)
    codes = stored.coverage.space.parse(attributes).expand(count, -1)
    return drawn(stored, codes, sampling or Sampling())


def draw_every(
    run: Path,
    each: int | None = None,
    sampling: Sampling | None = None,
    most: int | None = None,
    computing: Computing | None = None,
) -> ComposedSamples:
    """`each` samples of every combination of which all outcomes have been met, in the order of the labels.

    By default one, where samples are images, and otherwise 64. More than `most` combinations are refused.
    """
    computing = computing or Computing()
    _check_computing(run, computing)
    stored = open_composition(run)
    if most is not None and len(stored.coverage.space) > most:
        raise UsageError(
            f"There are {len(stored.coverage.space)} combinations, too many for one picture; sample chosen attributes."
        )
    each = each or (1 if stored.shape else 64)
    label = possible(stored.coverage).repeat_interleave(each)
    return drawn(stored, stored.coverage.space.decode(label), sampling or Sampling(), computing.batch)


@dataclass(frozen=True)
class Chosen:
    """Samples with the attributes `codes` (n, k), to be drawn a batch at a time, and who has seen which. An exported
    flow only knows what was seen, and not `by_silo`."""

    drawing: Drawing
    codes: Tensor
    coverage: Coverage
    by_silo: bool = True


def open_chosen(run: Path, attributes: str, count: int, sampling: Sampling, computing: Computing) -> Chosen:
    """`count` samples with these attributes, as of `draw_composed`, to be drawn a batch at a time on the CPU."""
    _check_computing(run, computing)
    opened = _opened(run)
    coverage = opened.stored.coverage
    codes = coverage.space.parse(attributes).expand(count, -1)
    asked = {"attributes": attributes, "how": sampling.how, "until": sampling.until}
    asked["weights"] = None if sampling.weights is None else list(sampling.weights)
    drawing = _drawing(opened.stored, codes, sampling, computing.batch)
    drawing = replace(drawing, facts={**opened.facts, **how_drawn(sampling), **asked})
    return Chosen(drawing, codes, coverage, opened.by_silo)


def _check_computing(run: Path, computing: Computing) -> None:
    if computing.device == "cuda" or computing.precision or computing.compile is not None:
        raise UsageError(
            f"{run} composes attributes; its samples are computed on the CPU, in the precision of the run. Leave out a"
            " GPU, a precision and compiling."
        )


def open_composition(run: Path) -> Stored:
    """The field of a run's last checkpoint, or an exported one; needs no data but the folder."""
    return _opened(run).stored


@dataclass(frozen=True)
class _Opened:
    """A composition, the facts that tell it from others, and whether its coverage says which silo has seen what."""

    stored: Stored
    facts: dict[str, Any]
    by_silo: bool


def _opened(place: Path) -> _Opened:
    if is_exported(place):
        return _handed_on(place)
    folder = RunFolder(place)
    config = folder.config()
    if not config.composes:
        raise UsageError(f"{place} ran '{config.method}', which {_PLAIN}")
    checkpoint = last_checkpoint(folder)
    stored = stored_mixture(config, checkpoint)
    tell_of_what_is_to_come(folder, checkpoint)
    return _Opened(stored, which(folder, checkpoint), by_silo=True)


def _handed_on(place: Path) -> _Opened:
    with exported_at(place):
        found = read_exported(place)
        stored = rebuilt_composition(found.facts, found.tensors) if found.composes else None
    if stored is None:
        raise UsageError(f"{place} is a flow that {_PLAIN}")
    return _Opened(stored, found.which, by_silo=len(stored.coverage.counts) > 1)


def drawn(stored: Stored, codes: Tensor, sampling: Sampling, batch: int = 0) -> ComposedSamples:
    """A sample for each row of `codes` (n, k)."""
    drawing = _drawing(stored, codes, sampling, batch)
    with spared(lambda: exhausted(drawing.batch)):
        parts = list(drawing.parts())
    x = torch.cat([torch.empty(0, stored.dimension), *(flow.x1 for flow in parts)])
    evaluations = sum(flow.evaluations * len(flow.x1) for flow in parts) / max(len(x), 1)
    return ComposedSamples(x, codes, round(evaluations), stored.coverage, stored.shape)


def _drawing(stored: Stored, codes: Tensor, sampling: Sampling, batch: int) -> Drawing:
    space = stored.coverage.space
    check_weights(space, sampling.how, sampling.weights, sampling.until)
    check_solver(sampling.nfe, sampling.solver)
    stored.mixture.field(codes, sampling.how, sampling.weights, sampling.until)  # what it refuses is refused at once
    words = _words(space, codes)

    def follow(x0: Tensor, start: int) -> Flow:
        with torch.no_grad():
            return stored.mixture.sample(
                codes[start : start + len(x0)],
                seeds.generator(sampling.seed, "sample"),  # of noise that is given here
                *(sampling.nfe, sampling.solver, sampling.how, sampling.weights),
                x0=x0,
                until=sampling.until,
            )

    return Drawing(
        len(codes),
        Computing(batch).at_once(len(codes), bool(stored.shape), torch.device("cpu")),
        gaussian_noise(stored.dimension, len(codes), sampling.seed),
        follow,
        lambda x: _table(x, words),
        stored.shape,
        words,
        _coordinates(stored.dimension),
    )


def _words(space: AttributeSpace, codes: Tensor) -> dict[str, list[str]]:
    """The attributes of every sample; one that was left open is empty."""
    return {
        name: ["" if code == NULL else outcomes[code] for code in codes[:, place].tolist()]
        for place, (name, outcomes) in enumerate(space.attributes)
    }


def _coordinates(dimension: int) -> tuple[str, ...]:
    return tuple(f"x{number + 1}" for number in range(dimension))


def _table(x: Tensor, words: Mapping[str, list[str]]) -> Table:
    found = zip(_coordinates(x.shape[1]), x.T.tolist(), strict=True)
    columns = {name: [f"{value:.6g}" for value in column] for name, column in found}
    check_columns(tuple(columns), words)
    return Table({**columns, **words})
