"""Cells of the study `flow_images`: tiny ones to run, and those of the recipes."""

from pathlib import Path

from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.runs import merged

TINY = {
    "nfe": [1, 2],
    "flow": {"rounds": 2, "batch": 4, "warm_up": 0},
    "images": {"channels": 4},
    "data": {"images": 90},
    "semidiscrete": {"rounds": 30, "count": 32, "noises": 128, "block": 32},
    "potential": {"batch": 8},
    "coupling": {"candidates": 8},
    "sampling": {"count": 12, "batch": 5},
    "memorised": True,
    "adaptive": True,
    "precise": {"nfe": 2, "count": 7},
}
PAPERS = ["ffm-cifar10", "ffm-cifar10-32", "ffm-ablation"]
METHODS = ["vanilla", "lot", "got", "got-balanced", "sd"]


def cell(out: Path, method: str, **options) -> StudyCell:
    chosen = merged(recipe("ffm-fashion").options("digits", method, "smoke"), TINY, options)
    folder = out / "digits" / method / "seed-0"
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell("digits", method, 0, "smoke", chosen, folder, 1)


def cells_of(name: str) -> list[StudyCell]:
    """Every cell of every scale, and of every problem and method that a scale could be asked for."""
    found = recipe(name)
    return [
        StudyCell(problem, method, seed, scale, found.options(problem, method, scale), Path(), 1)
        for scale in found.values["scales"]
        for problem, method, seed in dict.fromkeys(
            [*found.cells(scale), *found.cells(scale, methods=found.methods, problems=found.problems)]
        )
    ]
