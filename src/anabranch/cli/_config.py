"""A run's config from what was typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anabranch.errors import UsageError
from anabranch.runs import Config


def config_of(
    name: str, problem: str | None, method: str | None, scale: str, seed: int | None, changes: Sequence[str]
) -> Config:
    """The config of a recipe's cell, or of one's own .toml file, with changes applied."""
    from anabranch.recipes import check_seed, recipe
    from anabranch.runs import from_toml

    check_seed(seed)
    if not name.endswith(".toml"):
        found = recipe(name)
        return found.config(problem or found.problems[0], method or found.methods[0], scale, seed or 0, changes)
    if problem:
        raise UsageError("A .toml file has one problem, which its data describe; leave out --problem.")
    return from_toml(Path(name), method, [*([] if seed is None else [f"seed={seed}"]), *changes])
