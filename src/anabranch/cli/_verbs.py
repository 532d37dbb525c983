"""The verbs: thin, no logic of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli._at_sites import pair_lines
from anabranch.cli._bench import app as bench_verbs
from anabranch.cli._cluster import cluster
from anabranch.cli._coreset import coreset
from anabranch.cli._coverage import coverage
from anabranch.cli._data import app as data_verbs
from anabranch.cli._data import read_pictures
from anabranch.cli._distance import distance
from anabranch.cli._federation import app as federation_verbs
from anabranch.cli._fid import fid
from anabranch.cli._reproduce import reproduce
from anabranch.cli._run_shown import training_notes
from anabranch.cli._sample import sample
from anabranch.cli._show import print_table, sentences
from anabranch.cli._silos import Out
from anabranch.cli._sites import app as site_verbs
from anabranch.errors import UsageError
from anabranch.federation import Ranks

app = typer.Typer(
    name="anabranch",
    help="Generative flows and optimal transport on data that stays in its silos.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(site_verbs, name="site")
app.add_typer(federation_verbs, name="federation")
app.add_typer(data_verbs, name="data")
app.add_typer(bench_verbs, name="bench")
for verb in (reproduce, distance, cluster, coreset, coverage, sample, fid):
    app.command()(verb)

Change = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, as in --set rounds=20 or --set data.points=500.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from anabranch import __version__

        typer.echo(__version__)
        raise typer.Exit


SHARED = ("train", "resume", "reproduce")  # verbs whose work several processes can share


@app.callback()
@sentences
def anabranch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Generative flows and optimal transport on data that stays in its silos."""
    if Ranks.here().count > 1 and context.invoked_subcommand not in SHARED:
        raise UsageError(
            f"torchrun shares the silos of a run, for {', '.join(SHARED)}; start '{context.invoked_subcommand}' alone."
        )


@app.command()
@sentences
def demo(out: Out = None) -> None:
    """Train three ways on two silos, and compare them in a report. Takes a minute or two.

    A first look: one target, two silos that hold half of it each, and a flow trained with independent pairs
    (vanilla), with local optimal transport (lot), and with exact global optimal transport (sd).
    """
    from anabranch.recipes import recipe
    from anabranch.report import summary_table, write_report
    from anabranch.runs import train

    folder = out or Path("runs/demo")
    runs, rows = [], []
    for method in ("vanilla", "lot", "sd"):
        config = recipe("ffm-2d").config("8gaussians-moons", method, "small", 0, DEMO)
        with training_notes(f"{method:8s}") as notes:
            rows += train(config, folder / method, notes)
        runs.append(folder / method)
    print_table(summary_table(rows), "Two moons in two silos: distance to the target (W2) after 1, 3, 10, 100 steps")
    page = write_report(runs, folder / "report.html")
    typer.echo(f"Report: {page}")


DEMO = (
    "rounds=2000",
    "points=2000",
    "semidiscrete.rounds=1000",
    "semidiscrete.noises=262144",
    "evaluation.points=1024",
    "run.threads=1",  # quicker for so small a network: two wait for each other, and for whatever else is running
)


@app.command()
@sentences
def train(
    recipe_name: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or your own .toml file.")],
    problem: Annotated[str | None, typer.Option(help="A problem of the recipe; the first by default.")] = None,
    method: Annotated[
        str | None, typer.Option(help="A method of the recipe, the first by default; or another than the file's own.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, small or paper.")] = "small",
    seed: Annotated[int | None, typer.Option(help="Seed of everything but the data; 0, or the file's own.")] = None,
    engine: Annotated[
        str,
        typer.Option(help="Where silos live: local (this process), nvflare-sim, nvflare-poc, nvflare or flower-sim."),
    ] = "local",
    federation: Annotated[
        Path | None, typer.Option(help="For the engine nvflare: the folder that 'federation provision' made.")
    ] = None,
    experts: Annotated[
        Path | None, typer.Option(help="For compositions: a run whose experts to start from, instead of training them.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="For compositions: go on where coverage does not suffice, with a warning.")
    ] = False,
    out: Out = None,
    change: Change = None,
) -> None:
    """Train one run: a cell of a recipe, or your own data described in a TOML file.

    Ctrl-C ends the round, saves and stops; pressed twice it stops at once. That, or even kill -9, loses at most the
    work since the last checkpoint; 'anabranch resume' continues.
    """
    from anabranch.cli._config import config_of
    from anabranch.engines import train_on
    from anabranch.report import summary_table, write_report

    changes = [*(change or []), *(["composition.force=true"] if force else [])]
    changes += [f"composition.experts_from={json.dumps(str(experts.resolve()))}"] if experts is not None else []
    config = config_of(recipe_name, problem, method, scale, seed, changes)
    if (force or experts is not None) and not config.composes:
        raise UsageError(f"--force and --experts are for compositions; '{config.method}' is none. Leave them out.")
    label = f"{config.problem}-{config.method}-seed-{config.seed}"
    folder = out or Path("runs") / (label if config.recipe == "own" else f"{config.recipe}-{label}")
    ranks = Ranks.here()
    if ranks.count > 1 and engine != "local":
        raise UsageError(f"torchrun shares the silos of the engine 'local'; start '{engine}' without it.")
    if ranks.first:
        read_pictures(config)
    with training_notes(config.method) as notes:
        rows = train_on(engine, config, folder, notes, federation)
    if not ranks.first:
        return
    if config.compares:
        print_table(pair_lines(rows), f"{config.problem}, {config.method}")
        return
    print_table(summary_table(rows), f"{config.problem}, {config.method}")
    typer.echo(f"Report: {write_report([folder], folder / 'report.html')}")


@app.command()
@sentences
def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Continue an interrupted run, to the same parameters as an uninterrupted one.

    Cells of recipes go on with the same 'anabranch reproduce'.
    """
    from anabranch.engines import resume_on_its_engine
    from anabranch.report import summary_table, write_report
    from anabranch.runs import RunFolder

    ranks, folder = Ranks.here(), RunFolder(run)
    if ranks.first and folder.finished:
        folder.config()  # of a cell it says where the run is
        typer.echo(f"{run} is finished; nothing to resume.")
    with training_notes("resume") as notes:
        rows = resume_on_its_engine(run, notes)
    if not ranks.first:
        return
    print_table(summary_table(rows), str(run))
    typer.echo(f"Report: {write_report([run], run / 'report.html')}")


@app.command()
@sentences
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write; RUN/export by default.")] = None,
) -> None:
    """Write the trained flow, or composition, with a card that says what it is, to be handed on."""
    from anabranch.runs import export

    place = export(run, out)
    typer.echo(f"Exported: {place}; 'anabranch sample {place}' draws from it.")


@app.command()
@sentences
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One or more run folders.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Evaluate and compare runs in one self-contained HTML page."""
    from anabranch.report import summary_table, write_report
    from anabranch.runs import RunFolder

    rows = [row for run in runs if RunFolder(run).finished for row in RunFolder(run).read_json("results.json")["rows"]]
    page = write_report(runs, out)
    if rows:
        print_table(summary_table(rows), "Comparison")
    typer.echo(f"Report: {page}")
