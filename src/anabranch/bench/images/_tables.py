"""Rows as tables, header first; the first two columns are names."""

from __future__ import annotations

from anabranch.bench.images._loss import LossDifference, loss_difference
from anabranch.bench.images._result import ImageFigures
from anabranch.bench.images._work import PAPER, network_record

Lines = list[list[str]]
PAPER_STEPS = 400_000  # of CIFAR-10 (FFM, Appendix C.2)


def image_tables(figures: ImageFigures) -> list[tuple[str, Lines]]:
    """A title and the lines of every part that was measured."""
    made = [("Training steps", _steps(figures)), ("Sampling", _sampling(figures)), ("Mean loss", _loss(figures))]
    return [(title, lines) for title, lines in made if len(lines) > 1]


def _steps(figures: ImageFigures) -> Lines:
    header = ["silos x images", "what", "ms", "x peer", "overhead", "GiB", "Tflop/s", "of product", "at best ms"]
    told = _of_the_paper(figures)
    header += [*[f"h, {PAPER_STEPS // 1000}k steps"][: int(told)], ""]
    rows = [
        [
            row.case,
            row.what,
            _number(row["milliseconds"], 1),
            _number(row["speedup"], 2),
            _share(row["overhead"]),
            _number(row["gibibytes"], 1),
            _rate(row["teraflops"]),
            _share(row["of_roofline"]),
            _number(row["least_milliseconds"], 1),
            *[_number(_hours(row["milliseconds"]), 1)][: int(told)],
            row.note,
        ]
        for row in figures.of_part("step")
    ]
    return [header, *rows]


def _sampling(figures: ImageFigures) -> Lines:
    header = ["samples", "what", "evaluations/s", "x peer", "GiB", "Tflop/s", "of product", ""]
    rows = [
        [
            row.case,
            row.what,
            _number(row["evaluations_a_second"], 0),
            _number(row["speedup"], 2),
            _number(row["gibibytes"], 1),
            _rate(row["teraflops"]),
            _share(row["of_roofline"]),
            row.note,
        ]
        for row in figures.of_part("sampling")
    ]
    return [header, *rows]


def _loss(figures: ImageFigures) -> Lines:
    header = ["silos x images", "what", "steps", "loss of the last quarter", "difference"]
    rows = []
    for row in figures.of_part("loss"):
        difference = loss_difference(figures, row.case) if row.what == "ours" else None
        rows.append([row.case, row.what, _number(row["steps"], 0), _number(row["loss"], 5), _told(difference)])
    return [header, *rows]


def _told(difference: LossDifference | None) -> str:
    if difference is None:
        return ""
    return f"{100 * difference.value:.2f} %" + ("" if difference.whole else f" after {difference.steps} steps")


def _of_the_paper(figures: ImageFigures) -> bool:
    """Whether hours of the paper's training follow: those of a smaller network would be taken for them."""
    return all(figures.network.get(name) == value for name, value in network_record(PAPER).items())


def _hours(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else PAPER_STEPS * milliseconds / 3.6e6


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
