"""What a run at the scale `paper` would take, from seconds a round that were measured at another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import torch

from anabranch.flow.unet import ImageUNet, flops
from anabranch.recipes._recipe import recipes
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies.flow_images._config import STUDY, config_of
from anabranch.runs import Config

SCALE = "paper"
SUFFIX = "_round_seconds"  # of metrics, behind a phase's name
OPERATIONS = "round_operations"


def seconds_a_round(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of each phase the median over stretches between the lines of a run's log.

    So what takes its time once or seldom, such as compiling and checkpoints, does not count; nor does a phase with a
    single line.

    >>> log = [(10, "flow", 60.0), (20, "flow", 61.0), (30, "flow", 62.0), (40, "flow", 90.0), (50, "flow", 91.0)]
    >>> seconds_a_round([{"round": n, "phase": phase, "seconds": s} for n, phase, s in log])
    {'flow': 0.1}
    """
    found: dict[str, list[float]] = {}
    for one, other in pairwise(records):
        if one["phase"] == other["phase"] and other["round"] > one["round"]:
            rate = (other["seconds"] - one["seconds"]) / (other["round"] - one["round"])
            found.setdefault(str(one["phase"]), []).append(rate)
    return {phase: median(rates) for phase, rates in found.items()}


def operations_a_round(config: Config) -> int:
    """Operations of the flow's network in one round of all silos that are asked, its gradient included."""
    with torch.device("meta"):
        network = ImageUNet(prod(config.images.shape), **asdict(config.images))
    silos = 1 if config.data.pooled else config.federation.count or config.data.silos
    return flops(network, 1) * silos * config.flow.batch


def rounds_of(config: Config) -> dict[str, int]:
    """Rounds of every phase that a run may have; one that its method does not have has no seconds a round."""
    duals = config.semidiscrete
    return {
        "potential": config.potential.before,
        "duals": duals.rounds,
        "assign": -(-duals.noises // duals.block),
        "flow": config.flow.rounds,
    }


def hours_of(rounds: Mapping[str, int], seconds: Mapping[str, float], ratio: float) -> float:
    """Hours of so many rounds of each phase; those of the flow take `ratio` times as long as was measured.

    >>> hours_of({"duals": 7200, "flow": 36000}, {"duals": 0.5, "flow": 0.1}, ratio=4.0)
    5.0
    """
    return sum(rounds[phase] * (ratio if phase == "flow" else 1.0) * each for phase, each in seconds.items()) / 3600


def measured(config: Config, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a cell must tell for its hours to be computed, by metric."""
    found = {f"{phase}{SUFFIX}": value for phase, value in seconds_a_round(records).items()}
    return {**found, OPERATIONS: float(operations_a_round(config))}


@dataclass(frozen=True)
class Projection:
    """Of one method: seconds a round of the flow as measured, how many times the operations the paper's round takes,
    its rounds, and the hours of all phases."""

    seconds: float
    ratio: float
    rounds: int
    hours: float


def projection(problem: str, method: str, known: Mapping[str, float]) -> Projection | None:
    """From what a cell has `measured`; None where no recipe has such a cell at that scale, or where it ends by the
    clock.

    The time of the flow's rounds is taken to grow with the operations of the network. That is too much where a narrow
    network does not fill the device, or where a coupling takes time of its own: an upper bound, as a rule.
    """
    seconds = {name.removesuffix(SUFFIX): value for name, value in known.items() if name.endswith(SUFFIX)}
    paper = _paper(problem, method)
    if paper is None or "flow" not in seconds or not known.get(OPERATIONS):
        return None
    rounds, ratio = rounds_of(paper.config), paper.operations / known[OPERATIONS]
    return Projection(seconds["flow"], ratio, rounds["flow"], hours_of(rounds, seconds, ratio))


@dataclass(frozen=True)
class _Paper:
    config: Config
    operations: int


@cache
def _paper(problem: str, method: str) -> _Paper | None:
    """The cell at the scale of the paper. No two recipes of the study have problems of the same name there."""
    for recipe in recipes().values():
        places = {place[:2] for place in recipe.cells(SCALE)} if recipe.study == STUDY else set()
        if (problem, method) in places:
            options = recipe.options(problem, method, SCALE)
            config = config_of(StudyCell(problem, method, 0, SCALE, options, Path(), 1))
            return None if config.run.minutes else _Paper(config, operations_a_round(config))
    return None
