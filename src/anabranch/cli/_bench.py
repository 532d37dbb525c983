"""The benchmarks, printed."""

from __future__ import annotations

import json

import typer

from anabranch.bench import THREADS, measure
from anabranch.cli._show import console, print_table


def run_benchmarks(as_json: bool) -> None:
    """Measures, prints, and ends with code 1 when a limit is missed."""
    measured = measure(watch=lambda what: console.print(f"measuring: {what}", highlight=False))
    if as_json:
        typer.echo(json.dumps(measured.record()))
    else:
        print_table(measured.lines(), f"Milliseconds against torchcfm's classes, {THREADS} threads, median of turns")
    if not measured.ok:
        raise typer.Exit(1)
