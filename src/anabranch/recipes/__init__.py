"""How is a paper's table made? One TOML file an experiment; the figures it must reach are part of it."""

from anabranch.recipes._checks import Check, run_checks
from anabranch.recipes._in_turn import run_in_turn
from anabranch.recipes._recipe import SCALES, Recipe, check_seed, recipe, recipes
from anabranch.recipes._reproduce import AnyCell, Cell, Outcome, cells_of, reproduce
from anabranch.recipes._study import Presentation, StudyCell, present
from anabranch.recipes._theory import theory, theory_table

__all__ = [
    "SCALES",
    "AnyCell",
    "Cell",
    "Check",
    "Outcome",
    "Presentation",
    "Recipe",
    "StudyCell",
    "cells_of",
    "check_seed",
    "present",
    "recipe",
    "recipes",
    "reproduce",
    "run_checks",
    "run_in_turn",
    "theory",
    "theory_table",
]
