"""A recipe: one TOML file from which every cell of a paper's table follows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from anabranch.errors import UsageError, unknown
from anabranch.methods.ffm import PRESETS
from anabranch.runs import Config, Row, from_dict, merged, override

SCALES = ("smoke", "small", "paper")
_ABOUT_A_SCALE = ("about", "gpu", "seeds", "seeds_of", "methods", "problems")  # all else that a scale says is an option
_ABOUT_A_PROBLEM = ("methods", "of")  # likewise


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

    @property
    def study(self) -> str | None:
        """The study that computes the cells; None where a cell is a flow to be trained."""
        return self.values.get("study")

    @property
    def published(self) -> list[Row]:
        """The paper's own figures."""
        return list(self.values.get("published", []))

    def scale(self, name: str) -> dict[str, Any]:
        """What a scale changes, with its seeds."""
        if name not in self.values["scales"]:
            raise unknown("scale", name, self.values["scales"])
        found: dict[str, Any] = self.values["scales"][name]
        return found

    def config(self, problem: str, method: str, scale: str, seed: int, changes: Iterable[str] = ()) -> Config:
        """One cell: the base, changed by the method's preset, the problem, the method, the scale and `changes`."""
        self._check([method], [problem])
        if self.study is not None:
            raise UsageError(f"'{self.name}' trains no flow; run it with 'anabranch reproduce {self.name}'.")
        settings = {k: v for k, v in self.scale(scale).items() if k not in _ABOUT_A_SCALE and isinstance(v, dict)}
        # A scale has the last word on how long things take, a method on everything else.
        chosen = dict(self.values["methods"][method])
        start = PRESETS[chosen.pop("preset")] if "preset" in chosen else {}
        layers = merged(self.values["base"], start, self.values["problems"][problem], chosen, settings)
        names = {"recipe": self.name, "scale": scale, "problem": problem, "method": method, "seed": seed}
        return from_dict(override({**layers, **names}, changes))

    def options(self, problem: str, method: str, scale: str) -> dict[str, Any]:
        """What one cell of a study is computed with: the base, changed by the problem, the method, both, and the scale.

        What holds for a method in one problem alone stands under `of` in that problem.
        """
        self._check([method], [problem])
        place = self.values["problems"][problem]
        self._check(list(place.get("of", {})), [])
        chosen = {k: v for k, v in place.items() if k not in _ABOUT_A_PROBLEM}
        last = {k: v for k, v in self.scale(scale).items() if k not in _ABOUT_A_SCALE}
        both = place.get("of", {}).get(method, {})
        return merged(self.values.get("base", {}), chosen, self.values["methods"][method], both, last)

    def cells(
        self, scale: str, seed: int | None = None, methods: Sequence[str] = (), problems: Sequence[str] = ()
    ) -> list[tuple[str, str, int]]:
        """(problem, method, seed) of every cell of a scale, or of those selected.

        A problem that lists `methods` has cells for those alone. A scale has `seeds`, and others for the methods that
        it names in `seeds_of`; with `seed` all methods have that one.
        """
        settings = self.scale(scale)
        self._check(methods, problems)
        chosen = list(methods) or settings.get("methods", self.methods)
        places = list(problems) or settings.get("problems", self.problems)
        of = {p: self.values["problems"][p].get("methods", self.methods) for p in places}
        seeds = self._seeds(settings) if seed is None else {method: [seed] for method in self.methods}
        every = dict.fromkeys(number for method in chosen for number in seeds[method])  # in order, each once
        return [(p, m, s) for s in every for p in places for m in chosen if m in of[p] and s in seeds[m]]

    def _seeds(self, settings: dict[str, Any]) -> dict[str, list[int]]:
        """The seeds of every method at a scale."""
        special: dict[str, list[int]] = settings.get("seeds_of", {})
        self._check(list(special), [])
        return {method: special.get(method, settings["seeds"]) for method in self.methods}

    def _check(self, methods: Sequence[str], problems: Sequence[str]) -> None:
        """Refuses names that the recipe does not know."""
        for name in problems:
            if name not in self.problems:
                raise unknown("problem", name, self.problems)
        for name in methods:
            if name not in self.methods:
                raise unknown("method", name, self.methods)


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
