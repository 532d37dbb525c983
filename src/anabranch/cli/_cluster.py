"""The verb `anabranch cluster`: which silos hold data of one kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from torch import Tensor

from anabranch.cli._at_sites import FederationFolder, Tables, compare_at_sites
from anabranch.cli._show import print_table, sentences
from anabranch.cli._silos import (
    MOST_ATOMS,
    Categorical,
    Gathered,
    Json,
    Label,
    Limit,
    Missing,
    Out,
    PointsPerAtom,
    Reading,
    Rounds,
    Seed,
    Support,
    View,
    divide,
    gather,
)
from anabranch.cli._steps import steps
from anabranch.errors import AnabranchError, UsageError
from anabranch.federation import write_atomically

if TYPE_CHECKING:
    from anabranch.runs import Row


@sentences
def cluster(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="A silo each: files, or image sets.")
    ] = None,
    data: Annotated[str, typer.Option(help="Instead of FILES: one file, or image set, to be divided.")] = "",
    by: Annotated[str, typer.Option(help="What to divide --data by: a column, an archive's array, or label.")] = "",
    clusters: Annotated[int | None, typer.Option(help="How many; by default where the spectrum has its gap.")] = None,
    graph: Annotated[str, typer.Option(help="affinity, or how many neighbours a graph links, as 3 or 5.")] = "affinity",
    support: Support = None,
    rounds: Rounds = 10,
    view: View = "points",
    label: Label = "",
    missing: Missing = "refuse",
    categorical: Categorical = "",
    limit: Limit = None,
    points_per_atom: PointsPerAtom = 4,
    federation: FederationFolder = None,
    tables: Tables = False,
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Group silos whose data is alike, by the distances between them; no silo sees another's data.

    For example [bold]anabranch cluster clinic-*.csv --clusters 3[/bold], or from one file
    [bold]anabranch cluster --data all.csv --by clinic[/bold].

    Every pair is compared by a small measure ξ, as 'anabranch distance' does, and the distances are clustered. A
    picture of them and the figures are written to --out. Needs scikit-learn (extra 'learn').

    Sites of a real federation: [bold]anabranch cluster --federation FOLDER[/bold].
    """
    from anabranch.methods.fedwad import cluster as spectral
    from anabranch.methods.fedwad import groups
    from anabranch.report import draw_matrix

    folder = out or Path("runs") / f"cluster-{by or (federation.name if federation else len(files or []))}"
    if federation is not None:
        if files or data or by:
            raise UsageError("With --federation the sites hold the data; leave files, --data and --by out.")
        atoms = support or MOST_ATOMS
        asked: dict[str, Any] = {"support": atoms, "rounds": rounds, "view": view, "bounds": False}
        found = _at_sites(compare_at_sites(federation, folder, (), tables, seed, **asked), atoms)
        _check(found.names, clusters, graph)
    elif bool(files) == bool(data) or bool(data) != bool(by):
        raise UsageError("Give either files, one a silo, or --data with --by, which says what to divide it by.")
    else:
        how = Reading(label, missing, categorical, limit, points_per_atom, seed)
        gathered = divide(data, by, how) if data else gather(files or [], how)
        _check([silo.name for silo in gathered.silos], clusters, graph)
        found = _here(gathered, support, rounds, view, points_per_atom, seed)
    names, matrix = found.names, found.matrix
    labels = spectral(matrix, clusters, graph if graph == "affinity" else int(graph), seed)
    grouped = groups(labels, names)
    record = {
        "names": names,
        "matrix": matrix.tolist(),
        "labels": labels.tolist(),
        "groups": grouped,
        "support": found.support,
        "bytes": found.bytes,
    }
    clustered = f"{len(grouped)} clusters" if len(grouped) > 1 else "one cluster"
    picture = draw_matrix(matrix.numpy(), names, labels.tolist(), f"{len(names)} silos in {clustered}")
    write_atomically(folder / "cluster.png", picture)
    write_atomically(folder / "cluster.json", (json.dumps(record, indent=1) + "\n").encode())
    if as_json:
        typer.echo(json.dumps(record))
        return
    lines = [["cluster", "silos", "apart within", "nearest outside"]]
    for number, members in enumerate(grouped):
        inside = labels == number
        within = matrix[inside][:, inside].max()
        outside = matrix[inside][:, ~inside]
        nearest = f"{outside.min():.3g}" if outside.numel() else ""
        lines.append([str(number + 1), ", ".join(members), f"{within:.3g}" if len(members) > 1 else "", nearest])
    print_table(lines, f"{len(names)} silos, {len(names) * (len(names) - 1) // 2} distances by {found.support} atoms")
    typer.echo(f"Picture: {folder / 'cluster.png'}")


@dataclass(frozen=True)
class Compared:
    """All distances between silos, and what they cost: bytes by silo, or by pair where only those are known."""

    names: list[str]
    matrix: Tensor
    support: int
    bytes: dict[str, int]


def _here(gathered: Gathered, support: int | None, rounds: int, view: str, points_per_atom: int, seed: int) -> Compared:
    """Between silos of this process."""
    from anabranch.methods.fedwad import WadSettings, distances

    names = sorted(silo.name for silo in gathered.silos)
    settings = WadSettings(gathered.support(support, points_per_atom), rounds, view=view, bounds=False)
    gathered.check_labels(view)
    federation, pairs = gathered.federation(), list(combinations(names, 2))
    with steps(f"{len(pairs)} distances") as watch:
        values = distances(federation, pairs, settings, seed, watch=watch)
    spent = {name: federation.ledger.bytes(silo=name) for name in names}
    figures = {pair: one.value for pair, one in zip(pairs, values, strict=True)}
    return Compared(names, _matrix(names, figures), settings.support, spent)


def _at_sites(rows: Sequence[Row], support: int) -> Compared:
    """Between sites of a federation, from the rows of its run."""
    figures = {(row["pair"][0], row["pair"][1]): row["value"] for row in rows if row["metric"] == "distance"}
    spent = {" and ".join(row["pair"]): int(row["value"]) for row in rows if row["metric"] == "bytes"}
    names = sorted({name for pair in figures for name in pair})
    return Compared(names, _matrix(names, figures), support, spent)


def _matrix(names: Sequence[str], figures: Mapping[tuple[str, str], float]) -> Tensor:
    matrix = torch.zeros(len(names), len(names), dtype=torch.float64)
    for (first, second), value in figures.items():
        i, j = names.index(first), names.index(second)
        matrix[i, j] = matrix[j, i] = value
    return matrix


def _check(names: Sequence[str], clusters: int | None, graph: str) -> None:
    """Refuses before the distances are computed what could not be clustered after."""
    if find_spec("sklearn") is None:
        raise AnabranchError('Clustering needs scikit-learn, which is not installed; pip install "anabranch[learn]".')
    if len(names) < 2:
        raise UsageError(f"There is one silo only, '{names[0]}'; clusters need two or more.")
    if clusters is not None and not 1 <= clusters <= len(names):
        raise UsageError(f"{clusters} clusters were asked for; {len(names)} silos make 1 to {len(names)}.")
    if graph != "affinity" and not (graph.isdigit() and 2 <= int(graph) < len(names)):
        raise UsageError(
            f"--graph is '{graph}'; give affinity, or a number of neighbours, 2 or more and fewer than the"
            f" {len(names)} silos."
        )
