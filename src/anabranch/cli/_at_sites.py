"""Distances between sites of a federation: the same figures, asked of institutions instead of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli._run_shown import training_notes

if TYPE_CHECKING:
    from anabranch.runs import Row

FederationFolder = Annotated[
    Path | None,
    typer.Option("--federation", help="Compare sites, by their names: the folder that 'federation provision' made."),
]
Tables = Annotated[bool, typer.Option("--tables", help="With --federation: the sites hold tables, not arrays.")]


def compare_at_sites(
    federation: Path, out: Path, between: Sequence[str], tables: bool, seed: int, **settings: Any
) -> list[Row]:
    """Runs the method "fedwad" on the federation; what it leaves lies in the run folder `out`."""
    from anabranch.engines import train_on
    from anabranch.runs import FEDWAD, from_dict

    target = "tables at sites" if tables else "arrays at sites"
    values = {"method": FEDWAD, "problem": out.name, "seed": seed, "data": {"target": target}}
    config = from_dict({**values, "distance": {"between": list(between), **settings}})
    with training_notes(FEDWAD) as notes:
        return train_on("nvflare", config, out, notes, federation)


def pair_lines(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each pair: what the distance is at most, probably, and at least."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        found.setdefault(tuple(row["pair"]), {})[row["metric"]] = row["value"]
    columns = {"distance": "at most", "debiased": "best guess", "lower_bound": "at least"}
    shown = [name for name in columns if any(name in figures for figures in found.values())]
    lines = [["silo", "silo", *(columns[name] for name in shown), "rounds", "kB"]]
    for pair, figures in found.items():
        numbers = [f"{figures[name]:.4g}" if name in figures else "" for name in shown]
        lines.append([*pair, *numbers, f"{figures['rounds']:.0f}", f"{figures['bytes'] / 1e3:.1f}"])
    return lines
