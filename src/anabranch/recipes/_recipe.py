"""A recipe: one TOML file from which every cell of a paper's table follows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from anabranch.errors import UsageError, unknown
from anabranch.methods.ffm import PRESETS
from anabranch.runs import Config, from_dict, merged, override

SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Recipe:
    """An experiment: a base, and what problems, methods and scales change about it."""

    name: str
    title: str
    paper: str
    about: str
    values: dict[str, Any]

    @property
    def problems(self) -> list[str]:
        """The problems, first one first."""
        return list(self.values["problems"])

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the tables."""
        return list(self.values["methods"])

    def scale(self, name: str) -> dict[str, Any]:
        """What a scale changes, with its seeds."""
        if name not in self.values["scales"]:
            raise unknown("scale", name, self.values["scales"])
        found: dict[str, Any] = self.values["scales"][name]
        return found

    def config(self, problem: str, method: str, scale: str, seed: int, changes: Iterable[str] = ()) -> Config:
        """One cell: the base, changed by the method's preset, the problem, the method, the scale and `changes`."""
        if problem not in self.problems:
            raise unknown("problem", problem, self.problems)
        if method not in self.methods:
            raise unknown("method", method, self.methods)
        settings = {k: v for k, v in self.scale(scale).items() if isinstance(v, dict)}
        # A scale has the last word on how long things take, a method on everything else.
        chosen = dict(self.values["methods"][method])
        start = PRESETS[chosen.pop("preset")] if "preset" in chosen else {}
        layers = merged(self.values["base"], start, self.values["problems"][problem], chosen, settings)
        names = {"recipe": self.name, "scale": scale, "problem": problem, "method": method, "seed": seed}
        return from_dict(override({**layers, **names}, changes))

    def cells(
        self, scale: str, seed: int | None = None, methods: Sequence[str] = (), problems: Sequence[str] = ()
    ) -> list[tuple[str, str, int]]:
        """(problem, method, seed) of every cell of a scale, or of those selected."""
        settings = self.scale(scale)
        for name in methods:
            if name not in self.methods:
                raise unknown("method", name, self.methods)
        for name in problems:
            if name not in self.problems:
                raise unknown("problem", name, self.problems)
        chosen = list(methods) or settings.get("methods", self.methods)
        seeds = settings["seeds"] if seed is None else [seed]
        return [(p, m, s) for s in seeds for p in (problems or self.problems) for m in chosen]


def recipes() -> dict[str, Recipe]:
    """All recipes, by name."""
    found = {}
    for file in sorted(files("anabranch.recipes").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            values = tomllib.loads(file.read_text())
            name = file.name.removesuffix(".toml")
            found[name] = Recipe(name, values["title"], values["paper"], values["about"].strip(), values)
    return found


def recipe(name: str) -> Recipe:
    """The recipe of that name."""
    known = recipes()
    if name not in known:
        raise unknown("recipe", name, known)
    return known[name]


def check_seed(seed: int | None) -> None:
    """Refuses seeds that no generator takes."""
    if seed is not None and not 0 <= seed < 2**62:
        raise UsageError(f"The seed {seed} was given; it must lie between 0 and 2^62.")
