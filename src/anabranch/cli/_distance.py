"""The verb `anabranch distance`: how far two data sets are from each other, without pooling them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from torch import Tensor

from anabranch.cli._at_sites import FederationFolder, Tables, compare_at_sites, pair_lines
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
    gather,
    size_text,
)
from anabranch.cli._steps import steps
from anabranch.errors import UsageError
from anabranch.federation import Envelope, Federation, LocalEngine, Replies, Silo, write_atomically

if TYPE_CHECKING:
    from anabranch.methods.fedwad import Distance, WadSettings
    from anabranch.transport import Measure

MOST_PAIRS = 50_000_000  # of points: more take the exact distance beyond minutes and a few gigabytes


@sentences
def distance(
    first: Annotated[str, typer.Argument(metavar="A", help="A file (.csv, .npy, .npz) or an image set (mnist:test).")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    support: Support = None,
    rounds: Rounds = 20,
    power: Annotated[float, typer.Option(help="The p of W_p, 1 or more.")] = 2.0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Send every cell of a plan; shows the data, so needs --points-per-atom 1.")
    ] = False,
    t: Annotated[
        float | None, typer.Option(help="Where on the way ξ is taken, in (0, 1); by default drawn anew each time.")
    ] = None,
    view: View = "points",
    compare: Annotated[
        bool, typer.Option("--compare", help="Also compute the exact distance, for which both are put in one place.")
    ] = False,
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
    """Measure how far two data sets are from each other (Wasserstein distance); neither sees the other.

    For example [bold]anabranch distance north.csv south.csv[/bold], or, to see how good the answer is,
    [bold]anabranch distance north.csv south.csv --compare[/bold].

    With classes (OTDD): [bold]anabranch distance mnist:test fashion-mnist:test --limit 2000 --view classes[/bold].

    Each becomes a silo on this machine. What goes between them is a small measure ξ, and a few averages. Tables are
    standardised together, by means and counts alone. A picture and the figures are written to --out.

    Between two sites of a real federation: [bold]anabranch distance north south --federation FOLDER[/bold].
    """
    from anabranch.methods.fedwad import WadSettings
    from anabranch.methods.fedwad import distance as measure

    if exact and points_per_atom > 1:
        raise UsageError(
            "--exact has each silo answer with every single point, moved a little; say with --points-per-atom 1 that"
            " whoever sees the answers may see the data."
        )
    if federation is not None:
        folder = out or Path("runs") / f"distance-{first}-{second}"
        asked: dict[str, Any] = {"rounds": rounds, "power": power, "exact": exact, "t": t, "view": view}
        asked["support"] = support or MOST_ATOMS
        rows = compare_at_sites(federation, folder, (first, second), tables, seed, **asked)
        if as_json:
            typer.echo(json.dumps({row["metric"]: row["value"] for row in rows}))
        else:
            print_table(pair_lines(rows), f"W{_sub(power)} between {first} and {second}")
        return
    data = gather([first, second], Reading(label, missing, categorical, limit, points_per_atom, seed))
    atoms = data.support(support, points_per_atom)
    settings = WadSettings(atoms, rounds, power, exact, t, reveal="each round", view=view)
    data.check_labels(view)
    if compare:
        check_pairs(data)
    names = [silo.name for silo in data.silos]
    engine = Recorded(data.silos)
    silos = data.federation(engine)
    with steps("distance") as watch:
        found = measure(silos, names[0], names[1], settings, seed, watch=watch)
    truth = pooled(data, settings) if compare else None
    record = _record(found, silos, data, settings, truth)
    folder = out or Path("runs") / f"distance-{names[0]}-{names[1]}"
    _write(folder, record, found, engine, data, settings)
    if as_json:
        typer.echo(json.dumps(record))
    else:
        print_table(_lines(record), f"W{_sub(power)} between {names[0]} and {names[1]}")
        typer.echo(f"Picture: {folder / 'distance.png'}")


class Recorded(LocalEngine):
    """Silos of this process, and every ξ that went to them, in the order of the rounds."""

    def __init__(self, silos: list[Silo]) -> None:
        super().__init__(silos)
        self.path: list[tuple[Tensor, Tensor]] = []

    def ask(self, envelopes: Mapping[str, Envelope], timeout: float | None = None) -> Replies:
        """As usual; remembers a question that carries ξ."""
        from anabranch.methods.fedwad import Interpolate

        question = next(iter(envelopes.values())).question
        if isinstance(question, Interpolate):
            self.path.append((question.points[0], question.weight[0]))
        return super().ask(envelopes, timeout)


def check_pairs(data: Gathered) -> None:
    """Refuses an exact distance that nobody would wait for."""
    first, second = (len(silo) for silo in data.silos)
    if first * second > MOST_PAIRS:
        raise UsageError(
            f"--compare would need the costs of {first} × {second} pairs of points; take fewer with --limit."
        )


def pooled(data: Gathered, settings: WadSettings) -> float:
    """The exact distance, from both data sets in one place."""
    from anabranch.transport import wasserstein

    first, second = (measure_of(silo, settings.view) for silo in data.silos)
    return float(wasserstein(first, second, settings.power))


def measure_of(silo: Silo, view: str) -> Measure:
    """What of the silo's data is compared."""
    from anabranch.metrics import augment
    from anabranch.transport import measure

    x = silo.data.x.double()
    if view == "points":
        return measure(x)
    return measure(augment(x, silo.data.label, "diagonal" if view == "classes" else "full"))


def _record(
    found: Distance, federation: Federation, data: Gathered, settings: WadSettings, truth: float | None
) -> dict[str, Any]:
    """All that the verb says, as plain values."""
    silos = {
        silo.name: {
            "points": len(silo),
            "dimension": silo.data.x.shape[1],
            "sent_bytes": federation.ledger.bytes("up", silo.name),
            "received_bytes": federation.ledger.bytes("down", silo.name),
            "data_bytes": 4 * silo.data.x.numel(),
        }
        for silo in data.silos
    }
    record = {
        "value": found.value,
        "debiased": found.debiased,
        "lower": found.lower,
        "power": settings.power,
        "view": settings.view,
        "support": len(found.measure),
        "rounds": len(found.rounds),
        "converged": found.converged,
        "values": [one.value for one in found.rounds] + [found.value],
        "silos": silos,
    }
    if truth is None:
        return record
    guesses = {"value": found.value, "debiased": found.debiased}
    errors = {name: guess / truth - 1 for name, guess in guesses.items() if truth and guess is not None}
    return {**record, "exact": truth, "errors": errors}


def _lines(record: Mapping[str, Any]) -> list[list[str]]:
    lines = [["", "what it is", "value"]]
    lines.append(["at most", "W(A, ξ) + W(ξ, B): the distance is never larger", _number(record["value"])])
    if record["debiased"] is not None:
        lines.append(["best guess", "less what the silos find S atoms to overstate", _number(record["debiased"])])
    if record["lower"] is not None:
        lines.append(["at least", "by means and profiles: the distance is never smaller", _number(record["lower"])])
    if "exact" in record:
        lines.append(["exact", "computed with both data sets in one place", _number(record["exact"])])
        if not record["errors"]:
            lines.append(["error", "nothing can be said relative to an exact distance of 0", ""])
        for key, error in record["errors"].items():
            name = {"value": "at most", "debiased": "best guess"}[key]
            lines.append([f"error of '{name}'", "against the exact distance", f"{100 * error:+.1f} %"])
    ending = "ξ has settled, to 1 %" if record["converged"] else "ξ still changes; more --rounds help"
    lines.append(["rounds", ending, str(record["rounds"])])
    lines.append(["atoms of ξ", "more of them tighten 'at most', and tell more", str(record["support"])])
    for name, silo in record["silos"].items():
        size = f"its data stayed: {silo['points']} × {silo['dimension']} numbers, {size_text(silo['data_bytes'])}"
        lines.append([f"{name} sent", size, size_text(silo["sent_bytes"])])
        lines.append([f"{name} received", "", size_text(silo["received_bytes"])])
    return lines


def _write(
    folder: Path,
    record: Mapping[str, Any],
    found: Distance,
    engine: Recorded,
    data: Gathered,
    settings: WadSettings,
) -> None:
    """Picture and figures, each in one step."""
    from anabranch.report import Way, draw_way

    path = [*engine.path, (found.measure.points, found.measure.weight)]
    clouds = {silo.name: measure_of(silo, settings.view).points.numpy() for silo in data.silos}
    names = {"debiased": "best guess", "lower": "at least", "exact": "exact"}
    lines = {name: record[key] for key, name in names.items() if record.get(key) is not None}
    way = Way(clouds, [(x.double().numpy(), w.double().numpy()) for x, w in path], record["values"], lines)
    title = f"{' and '.join(clouds)}: W{_sub(settings.power)} by a measure ξ of {len(found.measure)} atoms"
    write_atomically(folder / "distance.png", draw_way(way, title))
    write_atomically(folder / "distance.json", (json.dumps(record, indent=1) + "\n").encode())


def _number(value: float) -> str:
    return f"{value:.4g}"


def _sub(power: float) -> str:
    return "₂" if power == 2 else "₁" if power == 1 else f"_{power:g}"
