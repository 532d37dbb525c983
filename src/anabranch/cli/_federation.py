"""The verbs of a coordinator: `anabranch federation …`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli._show import console, print_table, sentences, waiting
from anabranch.errors import UsageError

app = typer.Typer(
    help="Look after a federation: its certificates, its server, and for a trial all of it on one machine.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]


def _need_nvflare() -> None:
    from anabranch.engines import require

    require("nvflare")


@app.command()
@sentences
def provision(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="The sites' names, separated by commas.")],
    server: Annotated[str, typer.Option(help="The host name under which sites find the server.")] = "localhost",
    port: Annotated[int, typer.Option(help="The server's port for sites.")] = 8002,
    admin_port: Annotated[int, typer.Option(help="The server's port for whoever submits jobs.")] = 8003,
    admin: Annotated[str, typer.Option(help="Who submits jobs, as an e-mail address.")] = "admin@anabranch.local",
) -> None:
    """Make keys and certificates: a kit for the server, one for each site, and one for whoever submits jobs.

    Every site's kit denies code that a job brings along: a site runs its own installed package and nothing else.
    """
    _need_nvflare()
    from anabranch.engines.nvflare import provision as make

    names = [name.strip() for name in sites.split(",") if name.strip()]
    kits = make(folder, names, server, port, admin_port, admin)
    place = folder / "kits"
    lines = [["kit", "goes to"], [str(place / "server"), f"the machine {server}, which starts the server"]]
    lines += [[str(place / name), f"the institution '{name}', which starts its site with it"] for name in kits.sites]
    lines += [[str(place / "admin"), f"{admin}, who submits jobs"]]
    print_table(lines, "Kits: hand each one over in private, since it holds a key")
    typer.echo(f"What signs certificates is in {folder / 'authority'}; keep it, and keep it to yourself.")


@app.command()
@sentences
def start(
    folder: Folder,
    sites: Annotated[Path | None, typer.Option(help="Where sites' folders lie, by name; FOLDER/sites.")] = None,
    only: Annotated[str, typer.Option(help="Only these participants, separated by commas: 'server', or a site.")] = "",
    runs: Annotated[Path | None, typer.Option(help="Where the server keeps runs; FOLDER/runs.")] = None,
    recipe: Annotated[str, typer.Option(help="For a trial: a recipe or .toml file whose data the sites get.")] = "",
    problem: Annotated[str | None, typer.Option(help="A problem of the recipe; the first by default.")] = None,
    method: Annotated[str | None, typer.Option(help="A method of the recipe; the first by default.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting of the recipe.")] = None,
) -> None:
    """Start a federation on this machine, or a part of it: the server, or some sites.

    With --recipe a FOLDER that does not exist yet is made: certificates, and for every silo of the recipe a site folder
    with its part of the data. That is a whole federation on one machine in one command, for a trial.
    """
    _need_nvflare()
    from anabranch.cli._config import config_of
    from anabranch.engines.nvflare import make_trial, read_kits, site_places
    from anabranch.engines.nvflare import start as begin

    if recipe:
        if folder.exists():
            raise UsageError(f"{folder} exists already; start it without --recipe, or make the trial in a new folder.")
        make_trial(folder, config_of(recipe, problem, method, "small", None, change or []))
    kits = read_kits(folder)
    places = site_places(sites or folder / "sites")
    chosen = [name.strip() for name in only.split(",") if name.strip()] or None
    with console.status("Starting, and waiting for the sites to register."):
        begin(kits, places, runs or folder / "runs", chosen)
    typer.echo(f"Started: {', '.join(chosen or kits.participants)}.")
    typer.echo(f"Train with: {_train_line(folder, recipe, problem, method, change or [])}")


def _train_line(folder: Path, recipe: str, problem: str | None, method: str | None, changes: list[str]) -> str:
    """A line to copy; of a trial, with all that its data was made from."""
    named = [("--problem", problem), ("--method", method), *(("--set", change) for change in changes)]
    words = [word for option, value in named if value for word in (option, value)]
    rest = shlex.join([*words, "--engine", "nvflare", "--federation", str(folder)])
    return f"anabranch train {shlex.quote(recipe) if recipe else 'RECIPE'} {rest}"


@app.command()
@sentences
def status(folder: Folder) -> None:
    """Say who runs on this machine, which sites the server knows, and which jobs run."""
    _need_nvflare()
    from anabranch.engines.nvflare import read_kits
    from anabranch.engines.nvflare import status as look

    kits = read_kits(folder)
    found = look(kits)
    lines = [["participant", "on this machine", "known to the server"]]
    for name in kits.participants:
        running = f"process {found.running[name]}" if name in found.running else "not running"
        known = "" if name == "server" else "yes" if name in found.registered else "no"
        lines.append([name, running, known])
    print_table(lines, str(folder))
    for job, state in found.jobs.items():
        typer.echo(f"Job {job}: {state}")


@app.command()
@sentences
def stop(folder: Folder) -> None:
    """End every process of this federation on this machine, jobs first. Runs go on with 'anabranch resume'."""
    _need_nvflare()
    from anabranch.engines.nvflare import read_kits
    from anabranch.engines.nvflare import stop as end

    kits = read_kits(folder)
    with waiting("Looking for jobs and processes.") as say:
        ended = end(kits, say=say)
    typer.echo(f"Stopped: {', '.join(ended)}." if ended else f"Nothing of {folder} was running on this machine.")
