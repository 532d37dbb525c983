"""The run of a cell of the study `flow_images`."""

from __future__ import annotations

from anabranch.methods.ffm import PRESETS
from anabranch.recipes._study import StudyCell
from anabranch.runs import Config, from_dict, merged

STUDY = "flow_images"
# What may be set for a machine: time and memory hang on it, and of the figures nothing but the last digits.
FREE = ("flow.passes", "flow.compile", "sampling.batch", "inception.batch")
SECTIONS = ("data", "flow", "coupling", "potential", "semidiscrete", "images", "federation", "run")


def config_of(cell: StudyCell) -> Config:
    """The method's preset, with the recipe's sections over it."""
    sections = {name: cell.options[name] for name in SECTIONS if name in cell.options}
    names = {"recipe": "images", "scale": cell.scale, "problem": cell.problem, "method": cell.method, "seed": cell.seed}
    quick = {"evaluation": {"points": 64, "nfe": [1], "dopri5": False}}  # what a run says of itself is not asked here
    preset = cell.options.get("preset", cell.method)
    return from_dict(merged(PRESETS[preset], sections, quick, names))
