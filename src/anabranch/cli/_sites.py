"""The verbs of an institution that takes part: `anabranch site …`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from anabranch.cli._show import console, print_table, sentences
from anabranch.errors import UsageError

app = typer.Typer(
    help="Look after one institution's side of a federation: its data, its policy, its log.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]


@app.command()
@sentences
def init(
    folder: Folder,
    data: Annotated[
        Path, typer.Option(help="The site's data: .csv, .npy, .npz, or a folder of pictures. It stays where it is.")
    ],
    name: Annotated[str, typer.Option(help="The site's name; the folder's by default.")] = "",
    method: Annotated[str, typer.Option(help="The method to allow, by its preset's name.")] = "sd-protected",
    columns: Annotated[str, typer.Option(help="Columns of a .csv file to use, separated by commas; all.")] = "",
    held_out: Annotated[float, typer.Option(help="Share of the points kept from training, for metrics.")] = 0.2,
    attributes: Annotated[
        str,
        typer.Option(help="For methods that compose: arrays of an .npz file, by commas; all but x and shape."),
    ] = "",
    side: Annotated[
        int, typer.Option(help="Pictures of a folder: made smaller to so many pixels; 0: as they are.")
    ] = 0,
    colours: Annotated[int, typer.Option(help="Pictures of a folder: 1 makes them grey, 3 coloured.")] = 0,
    flip: Annotated[
        str, typer.Option(help="Mirror images in training: none, random, or points of their own.")
    ] = "none",
    crop: Annotated[float, typer.Option(help="Train on random pieces of images, of at least this share.")] = 1.0,
) -> None:
    """Make a site's folder: a commented site.toml and a secret. Nothing of the data is copied."""
    from anabranch.sites import new_settings, write_site
    from anabranch.sites._open import load_silo

    if not data.exists():
        raise UsageError(f"There is no file or folder {data}; name the site's data with --data.")
    chosen, named = (tuple(word.strip() for word in text.split(",") if word.strip()) for text in (columns, attributes))
    images = {"side": side, "colours": colours, "flip": flip, "crop": crop}
    settings = new_settings(folder, data, name, method, chosen, held_out, named, **images)
    load_silo(folder, settings)  # data that the site could not open is refused here, as 'site check' would
    write_site(folder, settings)
    typer.echo(f"Wrote {folder / 'site.toml'}. Read it, then: anabranch site check {folder}")


@app.command()
@sentences
def check(
    folder: Folder,
    recipe: Annotated[str, typer.Option(help="A recipe's name, or a run's .toml file, to estimate.")] = "",
    problem: Annotated[str | None, typer.Option(help="A problem of the recipe; the first by default.")] = None,
    method: Annotated[str | None, typer.Option(help="A method of the recipe; the first by default.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, small or paper.")] = "small",
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting of the run.")] = None,
) -> None:
    """Say what the site holds and answers, and what a run would cost it. Exit code 1 when it cannot take part.

    Nothing here touches a network.

    With --recipe a miniature of that run is played at this site alone: its messages are weighed, its answers timed.
    """
    from anabranch.cli._config import config_of
    from anabranch.sites import check_site

    if not recipe and (problem or method or change):
        raise UsageError("--problem, --method and --set belong to a run; name it with --recipe.")
    found = check_site(folder, config_of(recipe, problem, method, scale, None, change or []) if recipe else None)
    print_table(found.facts, str(folder))
    print_table(found.kinds, "What is answered")
    if found.costs:
        print_table(found.costs, "What the run would ask, and what that costs")
    for warning in found.warnings:
        console.print(f"[yellow]{escape(warning)}[/yellow]", highlight=False)
    for obstacle in found.obstacles:
        console.print(f"[red]{escape(obstacle)}[/red]", highlight=False)
    if not found.ok:
        typer.echo("This site cannot take part.")
        raise typer.Exit(1)
    typer.echo("This site can take part.")


@app.command()
@sentences
def start(
    folder: Folder,
    kit: Annotated[Path, typer.Option(help="The kit that the coordinator made for this site.")],
) -> None:
    """Connect the site to its federation and answer, until it is ended (Ctrl-C). All its connections are outbound."""
    from anabranch.engines import require

    require("nvflare")
    from anabranch.engines.nvflare import run_site

    run_site(kit, folder, typer.echo)


@app.command()
@sentences
def log(
    folder: Folder,
    run: Annotated[str, typer.Option(help="Only runs whose name holds this.")] = "",
    kind: Annotated[str, typer.Option(help="Only this kind of question.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    last: Annotated[
        int | None, typer.Option(min=0, help="Show so many entries, the newest; 0: all. 20 in a table.")
    ] = None,
) -> None:
    """Show every question that the site met, and what it answered. The log's chain is verified first."""
    from anabranch.sites import view_log

    shown = (0 if as_json else 20) if last is None else last
    view = view_log(folder, run, kind, refused, shown)
    if as_json:
        typer.echo(json.dumps(asdict(view)))
        return
    if view.entries:
        print_table(view.rows(), f"Audit log of {folder}, the last {len(view.entries)} of {view.questions}")
    typer.echo(view.totals())
    typer.echo(f"The chain of all {view.lines} lines is whole.")


@app.command()
@sentences
def withdraw(folder: Folder) -> None:
    """End all answers, from the next question on; a process that runs already heeds it too."""
    from anabranch.sites import withdraw as go

    how = "Withdrawn" if go(folder) else "Withdrawn already"
    typer.echo(f"{how}: nothing is answered until 'anabranch site return {folder}'.")


@app.command(name="return")
@sentences
def come_back(folder: Folder) -> None:
    """End a withdrawal: the policy alone decides again."""
    from anabranch.sites import go_back

    how = "Back" if go_back(folder) else "It had not withdrawn"
    typer.echo(f"{how}: questions are answered as site.toml says.")
