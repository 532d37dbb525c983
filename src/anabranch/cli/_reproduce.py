"""The verb `anabranch reproduce`: a paper's table again, with checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anabranch.cli._show import cell_watch, console, print_checks, print_table, sentences
from anabranch.cli._silos import Json, Out
from anabranch.errors import UsageError
from anabranch.federation import Ranks

if TYPE_CHECKING:
    from anabranch.recipes import Outcome, Presentation, Recipe

Seed = Annotated[int | None, typer.Option("--seed", help="Run this seed only.")]


@sentences
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A recipe.")] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes) or paper (the paper's own settings).")
    ] = "smoke",
    seed: Seed = None,
    methods: Annotated[str, typer.Option(help="Only these methods, separated by commas.")] = "",
    problems: Annotated[str, typer.Option(help="Only these problems, separated by commas.")] = "",
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0 means one a core.")] = 0,
    classes: Annotated[
        Path | None,
        typer.Option(help="A file with Inception's layer of classes (fc.weight), for the Inception Score of images."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="For recipes of images, what a machine needs otherwise: --set sampling.batch=250."),
    ] = None,
    as_json: Json = False,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes and end.")] = False,
) -> None:
    """Make a paper's table or figure again, and check it. Exit code 1 when a check fails.

    Every cell (problem, method, seed) has a folder: finished ones are skipped, so that a second call only fills
    the gaps. The same command can be given several times at once, on several GPUs say: each process takes cells that
    no other is at work on.
    """
    from anabranch.recipes import Presentation, cells_of, check_seed, recipe, recipes, run_in_turn
    from anabranch.recipes import reproduce as go

    if list_recipes:
        for found in recipes().values():
            typer.echo(f"{found.name}\n  {found.title} ({found.paper})\n  problems: {', '.join(found.problems)}")
            typer.echo(f"  methods: {', '.join(found.methods)}\n  scales: {', '.join(found.values['scales'])}")
        return
    if name is None:
        raise UsageError(f"Name a recipe: {', '.join(recipes())}; 'anabranch reproduce --list' says more.")
    check_seed(seed)
    found, folder = recipe(name), out or Path("runs") / f"{name}-{scale}"
    cells = cells_of(found, scale, folder, seed, _names(methods), _names(problems), classes, change or [])
    with cell_watch(f"{name}, {scale}") as watch:
        if Ranks.here().count > 1:
            run_in_turn(found, cells, watch)
        if not Ranks.here().first:
            return
        outcome = go(found, scale, cells, jobs or os.cpu_count() or 1, watch)
    for why in dict.fromkeys(outcome.failures.values()):  # what several cells want is said once
        whose = [cell for cell, reason in outcome.failures.items() if reason == why]
        more = f" and {len(whose) - 3} more" if len(whose) > 3 else ""
        console.print(f"[red]{escape(', '.join(whose[:3]))}{more} failed. {escape(why)}[/red]", highlight=False)
    records = [check.record() for check in outcome.checks]
    printed = {"rows": outcome.rows, "checks": records, "failures": outcome.failures}
    shown = Presentation()
    try:
        if outcome.runs:
            shown = _reported(found, outcome, folder, records)
        if found.study is not None:
            printed["pictures"] = {title: str(path) for title, path in shown.pictures.items()}
    finally:  # figures are there even where a picture of them fails
        if as_json:
            typer.echo(json.dumps(printed))
    if not as_json:
        for title, lines in shown.tables:
            print_table(lines, title)
        if outcome.checks:
            print_checks(outcome.checks)
    if not outcome.ok:
        raise typer.Exit(1)


def _reported(found: Recipe, outcome: Outcome, folder: Path, records: list[dict[str, Any]]) -> Presentation:
    """Writes the report of all cells; gives its tables, and where the pictures are."""
    from anabranch.recipes import Presentation, present, theory_table
    from anabranch.report import summary_table, write_report, write_study_report

    if found.study is not None:
        shown = present(found.study, outcome.rows, found.published, outcome.runs, folder / "figures")
        words = (found.title, found.paper, found.about)
        page = write_study_report(folder / "report.html", *words, shown.tables, shown.pictures, records)
    else:
        page, shown = write_report(outcome.runs, folder / "report.html", checks=records), Presentation()
        if runs := [row for row in outcome.rows if row["method"] != "theory"]:
            shown.tables.append((found.title, summary_table(runs)))
        if lines := theory_table(outcome.rows):
            title = "Theory in numbers: local plans against the global one, as two silos grow alike"
            shown.tables.append((title, lines))
    console.print(f"Report: {page}", highlight=False)
    return shown


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
