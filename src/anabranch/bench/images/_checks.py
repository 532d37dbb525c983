"""What figures of the paper's network on a large GPU must reach."""

from __future__ import annotations

from anabranch.bench.images._loss import loss_difference
from anabranch.bench.images._parts import PEER
from anabranch.bench.images._result import ImageFigures
from anabranch.recipes import Check

LEAST_SPEEDUP = {"3x128": 3.3, "32x32": 10.0}
MOST_OVERHEAD = {"lot": 0.10, "sd": 0.05, "got": 0.35}
LEAST_SAMPLING = 3.3
MOST_MEMORY = 12.0  # gibibytes, of any coupling's step
MOST_DIFFERENCE = 0.01  # of the mean loss
CASE = "3x128"


def image_checks(figures: ImageFigures) -> list[Check]:
    """A check for every limit whose figures were measured."""
    return [*_steps(figures), *_sampling(figures), *_loss(figures)]


def _steps(figures: ImageFigures) -> list[Check]:
    checks = []
    for case, limit in LEAST_SPEEDUP.items():
        if (row := figures.find("step", case, "vanilla")) is not None:
            checks.append(_least(f"step, {case}: times faster than the peer", row["speedup"], limit))
    for method, limit in MOST_OVERHEAD.items():
        if (row := figures.find("step", CASE, method)) is not None:
            checks.append(_most(f"step, {CASE}: overhead of {method}", row["overhead"], limit))
    rows = [row for row in figures.of_part("step") if row.case == CASE and row.what != PEER]
    held = [memory for row in rows if (memory := row["gibibytes"]) is not None]
    if held:
        checks.append(_most(f"step, {CASE}: gibibytes at most", max(held), MOST_MEMORY))
    return checks


def _sampling(figures: ImageFigures) -> list[Check]:
    rows = [row for row in figures.of_part("sampling") if row.what != PEER]
    return [_least(f"sampling, {row.case}: times the peer's rate", row["speedup"], LEAST_SAMPLING) for row in rows]


def _loss(figures: ImageFigures) -> list[Check]:
    """Of trainings that came to their end: half of one says something else."""
    cases = dict.fromkeys(row.case for row in figures.of_part("loss"))
    found = {case: loss_difference(figures, case) for case in cases}
    return [
        _most(f"loss, {case}: relative difference", difference.value, MOST_DIFFERENCE)
        for case, difference in found.items()
        if difference is not None and difference.whole
    ]


def _least(name: str, value: float | None, limit: float) -> Check:
    return Check(name, value, limit, value is not None and value >= limit)


def _most(name: str, value: float | None, limit: float) -> Check:
    return Check(name, value, limit, value is not None and value <= limit)
