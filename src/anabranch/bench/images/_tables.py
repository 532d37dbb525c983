"""Rows as tables, header first; the first two columns are names."""

from __future__ import annotations

from anabranch.bench.images._checks import loss_difference
from anabranch.bench.images._result import ImageFigures

Lines = list[list[str]]


def image_tables(figures: ImageFigures) -> list[tuple[str, Lines]]:
    """A title and the lines of every part that was measured."""
    made = [("Training steps", _steps(figures)), ("Sampling", _sampling(figures)), ("Mean loss", _loss(figures))]
    return [(title, lines) for title, lines in made if len(lines) > 1]


def _steps(figures: ImageFigures) -> Lines:
    header = ["silos x images", "what", "ms", "x peer", "overhead", "GiB", "Tflop/s", "of product", "at best ms", ""]
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
        told = "" if difference is None else f"{100 * difference:.2f} %"
        rows.append([row.case, row.what, _number(row["steps"], 0), _number(row["loss"], 5), told])
    return [header, *rows]


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
