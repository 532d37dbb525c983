"""The verb `anabranch coreset`: a few points that stand for the data of all silos."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from anabranch.cli._show import print_table, sentences
from anabranch.cli._silos import (
    Categorical,
    Json,
    Limit,
    Missing,
    Out,
    PointsPerAtom,
    Reading,
    Seed,
    gather,
    size_text,
)
from anabranch.cli._steps import steps
from anabranch.federation import write_atomically


@sentences
def coreset(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="A silo each: files, or image sets.")],
    size: Annotated[int, typer.Option(help="How many points the coreset has.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="How often it is moved.", min=1)] = 200,
    active: Annotated[int, typer.Option(help="Silos asked in a round; all where there are fewer.", min=1)] = 10,
    missing: Missing = "refuse",
    categorical: Categorical = "",
    limit: Limit = None,
    points_per_atom: PointsPerAtom = 4,
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Learn a few points that stand for the data of all silos, which stays in them.

    For example [bold]anabranch coreset north.csv south.csv --size 10[/bold], or
    [bold]anabranch coreset digits --size 10[/bold].

    The points are moved until their distance to the silos' data is small on average; each stands for many. Points,
    picture and figures are written to --out; of tables the points come in the tables' own columns, too.
    """
    from anabranch.methods.fedwad import CoresetSettings, learn_coreset
    from anabranch.report import draw_coreset

    data = gather(files, Reading("", missing, categorical, limit, points_per_atom, seed))
    atoms = data.support(size, points_per_atom, "--size")
    settings = CoresetSettings(size, rounds, active, atoms)
    federation = data.federation()
    with steps("coreset") as watch:
        found = learn_coreset(federation, settings, seed, watch=watch)
    names = federation.names
    folder = out or Path("runs") / f"coreset-{'-'.join(names[:3])}"
    points, weight = found.points.numpy(), found.weight.numpy()
    record: dict[str, Any] = {
        "points": points.tolist(),
        "weight": weight.tolist(),
        "objective": list(found.objective),
        "bytes": {name: federation.ledger.bytes(silo=name) for name in names},
    }
    clouds = {silo.name: silo.data.x.numpy() for silo in data.silos}
    side = math.isqrt(points.shape[1])
    square = (1, side, side) if side >= 8 and side**2 == points.shape[1] and data.encoder is None else ()
    title = f"{size} points for {', '.join(names) if len(names) < 4 else f'{len(names)} silos'}"
    write_atomically(folder / "coreset.png", draw_coreset(points, weight, clouds, data.shape or square, title))
    stream = io.BytesIO()
    np.savez(stream, x=points)
    write_atomically(folder / "coreset.npz", stream.getvalue())
    write_atomically(folder / "coreset.json", (json.dumps(record, indent=1) + "\n").encode())
    if data.encoder is not None:
        with TemporaryDirectory() as place:
            data.encoder.decode(found.points.float()).write(table := Path(place) / "coreset.csv")
            write_atomically(folder / "coreset.csv", table.read_bytes())
    if as_json:
        typer.echo(json.dumps(record))
        return
    lines = [["", "what it is", "value"]]
    lines.append(["at first", "mean W₂ to the silos' data, where the points began", f"{found.objective[0]:.4g}"])
    lines.append(["at last", f"the same after {rounds} rounds", f"{found.objective[-1]:.4g}"])
    lines.append(["each silo", "sent and received, at most", size_text(max(record["bytes"].values()))])
    largest = max(data.silos, key=len)
    facts = f"the largest silo's data: {len(largest)} × {points.shape[1]} numbers"
    lines.append(["for comparison", facts, size_text(4 * largest.data.x.numel())])
    print_table(lines, title)
    typer.echo(f"Points: {folder / 'coreset.npz'}, picture: {folder / 'coreset.png'}")
