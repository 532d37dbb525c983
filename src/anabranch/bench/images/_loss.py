"""The loss of a training, told as it goes: a run that is cut keeps what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.bench.images._ours import OurTraining
from anabranch.bench.images._result import ImageFigures, ImageRow
from anabranch.bench.images._work import ImageWork

MARKS = 10  # how often a training tells
AFTER = "loss_after_"  # so many steps, as figures of a row are named


def loss_rows(work: ImageWork, what: str, watch: Callable[[str], None]) -> Iterator[ImageRow]:
    """The mean loss over the last quarter of the steps so far, ten times over: each row takes the place of the one
    before, and has its figures, too.

    The rate rises over the first quarter of all steps, so that most of them train at the rate that runs have.
    """
    case, sequential, quarter = work.cases[0], what == "sequential", work.loss_steps // 4
    precision = "float32" if sequential else None
    training = OurTraining(work, case, "vanilla", not sequential, precision, warm_up=quarter)
    losses: list[Tensor | float] = [training.first.metrics["loss"]]
    known: dict[str, float | None] = {}
    for number in range(2, work.loss_steps + 1):  # the first was taken when the training was built
        losses.append(training.step().metrics["loss"])
        if number % max(1, work.loss_steps // MARKS) == 0 or number == work.loss_steps:
            mean = _mean(losses[-max(1, number // 4) :])
            known[f"{AFTER}{number}"] = mean
            watch(f"loss, {case.name}: {what}, step {number} of {work.loss_steps}, {mean:.4f}")
            figures = {"loss": mean, "steps": number, "of_steps": work.loss_steps, **known}
            yield ImageRow("loss", case.name, what, figures, training.compiled_words())


@dataclass(frozen=True)
class LossDifference:
    """|ours − sequential| / sequential over the last quarter of so many steps; `whole` if these are all of them."""

    value: float
    steps: int
    whole: bool


def loss_difference(figures: ImageFigures, case: str) -> LossDifference | None:
    """After the most steps that both have taken; None where the one was to take others than the other.

    The rate rises over a quarter of all steps: trainings of different lengths are different from the start.
    """
    ours, other = (figures.find("loss", case, what) for what in ("ours", "sequential"))
    if ours is None or other is None or _planned(ours) != _planned(other):
        return None
    here, there = _told(ours), _told(other)
    steps = max(here.keys() & there.keys(), default=0)
    if not steps or not there[steps]:
        return None
    return LossDifference(abs(here[steps] - there[steps]) / there[steps], steps, steps == _planned(ours))


def _planned(row: ImageRow) -> float | None:
    return row["steps"] if row["of_steps"] is None else row["of_steps"]


def _told(row: ImageRow) -> dict[int, float]:
    """The mean loss over the last quarter of so many steps, by their number."""
    figures = {f"{AFTER}{row['steps']:.0f}": row["loss"], **row.figures}
    told = {name: value for name, value in figures.items() if name.startswith(AFTER)}
    return {int(name.removeprefix(AFTER)): value for name, value in told.items() if value is not None}


def _mean(losses: list[Tensor | float]) -> float:
    """One look at the device for all of them."""
    return float(torch.stack([torch.as_tensor(loss) for loss in losses]).double().mean())
