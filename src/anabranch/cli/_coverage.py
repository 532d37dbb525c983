"""The verb `anabranch coverage`: who has seen which combination of attributes, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anabranch.cli._idle import given, refuse_idle
from anabranch.cli._show import console, print_table, sentences
from anabranch.cli._silos import Json, Seed
from anabranch.errors import UsageError
from anabranch.runs import spelling_hints

if TYPE_CHECKING:
    from anabranch.data.attributes import Attributed, Coverage

MATRIX = 12  # outcomes of each of two attributes that still fit a table
LISTED = 40  # combinations of more attributes that are listed one by one
NAMED = 6  # silos that have a column of their own in that list


@sentences
def coverage(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Archives (.npz), a silo each: x and an array for each attribute; or a run's .toml.",
        ),
    ] = None,
    attributes: Annotated[
        str, typer.Option(help="Of files: arrays that are attributes; by default all but x and shape.")
    ] = "",
    data: Annotated[str, typer.Option(help="Instead of files: corners, colored-digits, colored-mnist, dsprites.")] = "",
    count: Annotated[int | None, typer.Option(help="With --data: so many samples; by default all.", min=1)] = None,
    observed: Annotated[
        str, typer.Option(help="Keep some combinations: all, band, band:3, minimal or all-but-one.")
    ] = "all",
    silos: Annotated[int, typer.Option(help="Divide one file, or --data, among so many silos.", min=1)] = 1,
    partition: Annotated[
        str,
        typer.Option(help="How to divide: iid, dirichlet (over combinations), or dirichlet:NAME (over one attribute)."),
    ] = "iid",
    alpha: Annotated[float, typer.Option(help="Of dirichlet: the smaller, the more silos differ.")] = 0.1,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Draw heat maps into this .png file.")] = None,
    as_json: Json = False,
) -> None:
    """Show who has seen which combination of attributes, and whether the others can be composed from them.

    For example [bold]anabranch coverage north.npz south.npz --attributes digit,color[/bold], or, to try a partition,
    [bold]anabranch coverage --data colored-digits --silos 10 --partition dirichlet --observed band[/bold].

    C is the share of combinations that some silo has seen, C_min the least that composition needs, M the share of an
    attribute's outcomes. Everything is counted on this machine; between silos, counts alone would be told.
    """
    if out is not None and out.suffix != ".png":
        raise UsageError(f"'{out}' was given for the picture; it must end in .png.")
    if bool(files) == bool(data):
        raise UsageError("Give files, or a source with --data: one of both.")
    if len(files or []) > 1 and silos > 1:
        raise UsageError(f"--silos {silos} divides one file; {len(files or [])} were given, which are silos already.")
    refuse_idle(given(context), files or [], silos, partition)
    if data:
        from anabranch.data.attributes import attributed

        samples = attributed(data, count=count, seed=seed, observed=observed)
        found = _divided(samples, silos, partition, alpha, seed)
    elif [path.suffix for path in files or []] == [".toml"]:
        found = _of_run((files or [])[0])
    else:
        found = _of_files(files or [], attributes, observed, silos, partition, alpha, seed)
    for hint in spelling_hints(found.space):
        console.print(f"[yellow]{escape(hint)}[/yellow]", highlight=False)
    if out is not None:
        from anabranch.federation import write_atomically
        from anabranch.report._coverage import draw_coverage

        write_atomically(out, draw_coverage(found, _title(found)))
    if as_json:
        typer.echo(json.dumps(_record(found)))
        return
    _print(found)
    if out is not None:
        typer.echo(f"Picture: {out}")


def _of_run(path: Path) -> Coverage:
    """What the silos of a run would train on; the file says how they come by it."""
    from anabranch.runs import coverage_of, from_toml

    config = from_toml(path)
    if not config.composes:
        raise UsageError(f"{path} asks for the method '{config.method}', which knows no attributes; name another.")
    return coverage_of(config)


def _of_files(
    files: Sequence[Path], attributes: str, observed: str, silos: int, partition: str, alpha: float, seed: int
) -> Coverage:
    from anabranch.data.attributes import Coverage, keep_observed, load_silos

    names = [name.strip() for name in attributes.split(",") if name.strip()]
    paths = {path.stem: path for path in files}
    if len(paths) < len(files):
        raise UsageError("Two files have the same name, which would name two silos alike; rename one.")
    kept = {silo: keep_observed(each, observed) for silo, each in load_silos(paths, names).items()}
    if len(files) == 1 and silos > 1:
        return _divided(next(iter(kept.values())), silos, partition, alpha, seed)
    space = next(iter(kept.values())).space
    return Coverage.of(space, {silo: each.label for silo, each in kept.items()})


def _divided(data: Attributed, silos: int, partition: str, alpha: float, seed: int) -> Coverage:
    from anabranch import seeds
    from anabranch.data.attributes import divide

    return data.coverage(divide(data, partition, silos, seeds.generator(seed, "partition"), alpha))


def _record(found: Coverage) -> dict[str, Any]:
    """All that the verb says, as plain values."""
    space = found.space
    problems = found.problems()
    return {
        "attributes": {name: list(outcomes) for name, outcomes in space.attributes},
        "combinations": len(space),
        "observed": len(found.known),
        "needed": found.needed,
        "coverage": found.share,
        "minimum": found.minimum,
        "marginal": found.marginal,
        "determined": int(found.determined.sum()),
        "feasible": not problems,
        "problems": problems,
        "novel": [space.describe(label) for label in found.novel[:1000].tolist()],
        "silos": {
            silo: {
                "samples": int(each.sum()),
                "combinations": int((each > 0).sum()),
                "counts": {space.describe(label): int(each[label]) for label in each.nonzero()[:1000, 0].tolist()},
            }
            for silo, each in found.counts.items()
        },
    }


def _print(found: Coverage) -> None:
    space = found.space
    if space.k == 2 and max(space.sizes) <= MATRIX:
        print_table(_matrix(found), f"Samples of {space.names[0]} × {space.names[1]}, and how many silos hold them")
    elif len(space) <= LISTED:
        print_table(_list(found), "Samples of each combination")
    else:
        title = f"Samples of each outcome ({len(space)} combinations: too many to list)"
        print_table(_outcomes(found), title, names=2)
    print_table(_silos(found), "Silos")
    print_table(_summary(found), "Coverage (counted on this machine; nothing was sent)")
    problems = found.problems()
    for problem in problems:
        console.print(f"[yellow]{escape(problem)}[/yellow]", highlight=False)
    if not problems:
        typer.echo("Every combination follows from the observed ones.")


def _matrix(found: Coverage) -> list[list[str]]:
    (first, rows), (second, columns) = found.space.attributes
    total = found.total.reshape(found.space.sizes)
    holders = sum((found.holds(silo).long() for silo in found.counts), start=0 * found.total)
    held = holders.reshape(found.space.sizes)
    lines = [[f"{first} \\ {second}", *columns]]
    for i, name in enumerate(rows):
        cells = [f"{int(total[i, j])} ({int(held[i, j])})" if total[i, j] else "novel" for j in range(len(columns))]
        lines.append([name, *cells])
    return lines


def _list(found: Coverage) -> list[list[str]]:
    shown = list(found.counts) if len(found.counts) <= NAMED else []
    lines = [["combination", "seen", *shown, "all silos"]]
    for label in range(len(found.space)):
        holders = sum(int(found.counts[silo][label] > 0) for silo in found.counts)
        seen = f"by {holders} of {len(found.counts)}" if holders else "novel"
        own = [str(int(found.counts[silo][label])) for silo in shown]
        lines.append([found.space.describe(label), seen, *own, str(int(found.total[label]))])
    return lines


def _outcomes(found: Coverage) -> list[list[str]]:
    lines = [["attribute", "outcome", "samples", "silos"]]
    table = found.total.reshape(found.space.sizes)
    met = {silo: found.seen(silo) for silo in found.counts}
    for axis, (name, outcomes) in enumerate(found.space.attributes):
        sums = table.movedim(axis, 0).flatten(1).sum(dim=1)
        for code, outcome in enumerate(outcomes):
            silos = sum(int(seen[axis][code]) for seen in met.values())
            lines.append([name, outcome, str(int(sums[code])), f"{silos} of {len(met)}"])
    return lines


def _silos(found: Coverage) -> list[list[str]]:
    lines = [["silo", "samples", "combinations", *(f"of {name}" for name in found.space.names)]]
    for silo, each in found.counts.items():
        seen = [f"{int(one.sum())} of {len(one)}" for one in found.seen(silo)]
        lines.append([silo, str(int(each.sum())), f"{int((each > 0).sum())} of {len(found.space)}", *seen])
    return lines


def _summary(found: Coverage) -> list[list[str]]:
    size = len(found.space)
    lines = [["", "what it is", "value", ""]]
    lines.append(["C", "combinations that some silo has seen", f"{found.share:.4g}", f"{len(found.known)} of {size}"])
    lines.append(["C_min", "the least that composition needs", f"{found.minimum:.4g}", f"{found.needed} of {size}"])
    for (name, outcomes), share in zip(found.space.attributes, found.marginal.values(), strict=True):
        met = round(share * len(outcomes))
        lines.append([f"M, {name}", "outcomes that some silo has seen", f"{share:.4g}", f"{met} of {len(outcomes)}"])
    follow = int(found.determined.sum())
    lines.append(["determined", "combinations that follow from those", f"{follow / size:.4g}", f"{follow} of {size}"])
    return lines


def _title(found: Coverage) -> str:
    share = f"C = {found.share:.3g}, C_min = {found.minimum:.3g}"
    return f"{' × '.join(found.space.names)}: {share}; framed is what no silo has seen"
