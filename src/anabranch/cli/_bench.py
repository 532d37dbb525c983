"""The benchmarks, printed: `anabranch bench`, and `anabranch bench images`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from anabranch.cli._show import console, print_checks, print_table, sentences
from anabranch.cli._silos import Json
from anabranch.errors import UsageError

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
@sentences
def bench(context: typer.Context, as_json: Json = False) -> None:
    """Measure training steps and couplings, against torchcfm's classes in the same run where it is (extra 'bench').

    [bold]anabranch bench images[/bold] does so for images: the UNet's steps with every coupling, sampling, memory.
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise UsageError("Write --json after the verb it belongs to: anabranch bench images --json.")
        return
    from anabranch.bench import THREADS, measure

    measured = measure(watch=_tell)
    if as_json:
        typer.echo(json.dumps(measured.record()))
    else:
        beside = "" if measured.note else " against torchcfm's classes"
        print_table(measured.lines(), f"Milliseconds{beside}, {THREADS} threads, median of turns")
    if measured.note:
        console.print(escape(measured.note), highlight=False)
    if not measured.ok:
        raise typer.Exit(1)


@app.command()
@sentences
def images(
    part: Annotated[
        str,
        typer.Option(help="Parts to measure, with commas: step, sampling, loss (or loss-ours, loss-sequential alone)."),
    ] = "step,sampling",
    device: Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU where there is one.")] = "auto",
    scale: Annotated[
        str | None, typer.Option(help="paper: its network for CIFAR-10; tiny: 8x8. By default paper on a GPU only.")
    ] = None,
    channels: Annotated[int | None, typer.Option(help="The UNet's channels, instead of the scale's.")] = None,
    silos: Annotated[str, typer.Option(help="Silos of each case; 3,32 at scale paper, 2,3 at tiny.")] = "",
    batch: Annotated[str, typer.Option(help="Images of a silo in a step, as many numbers; 128,32, at tiny 8,4.")] = "",
    method: Annotated[
        str, typer.Option(help="Couplings: vanilla (always), lot, got, got-balanced, got-entropic, sd.")
    ] = "vanilla,lot,got,got-balanced,got-entropic,sd",
    precision: Annotated[str, typer.Option(help="bfloat16 (on a GPU that can) or float32, of our side.")] = "bfloat16",
    steps: Annotated[
        int | None, typer.Option(help="Steps of a turn, at most, of turns whose median counts; 10, at tiny 3.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Images sampled at once; 1000, at tiny 32.")] = None,
    nfe: Annotated[int | None, typer.Option(help="Evaluations of the velocity a sample; 10, at tiny 3.")] = None,
    loss_steps: Annotated[
        int | None, typer.Option(help="Steps of which the last quarter's mean loss is told; 2000, at tiny 40.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the figures; those of an earlier run there are kept beside.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure image training: milliseconds a step of every coupling, sampling, memory, against a plain loop.

    The plain loop trains torchcfm's network silo after silo in torch's default precision; where torchcfm cannot be
    imported our own network stands in, and the table says so. The roofline is a large product, measured in the run.

    On a GPU: [bold]anabranch bench images --out figures.json[/bold], then [bold]--part loss[/bold] into the same file.

    With the paper's network in bfloat16 on a GPU the limits that are kept are checked; the exit code is 1 when one is
    missed.
    """
    from anabranch.bench.images import cases_of, image_checks, image_tables, measure_images, parts_of, work_of

    parts = parts_of(_names(part))
    usual = work_of(device, scale, channels)
    given = {"steps": steps, "samples": samples, "evaluations": nfe, "loss_steps": loss_steps}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    cases = cases_of(_numbers("--silos", silos), _numbers("--batch", batch), usual.cases)
    methods = tuple(_names(method)) or ("vanilla",)
    work = work_of(device, scale, channels, cases=cases, methods=methods, precision=precision, **changes)
    if work.precision != work.computed and work.device.type == "cuda":
        console.print("This GPU has no bfloat16; our side is computed in float32.", highlight=False)
    figures = measure_images(work, parts, out, _tell)
    checks = image_checks(figures) if work.of_the_paper else []
    if as_json:
        typer.echo(json.dumps({**figures.record(), "checks": [check.record() for check in checks]}))
    else:
        side, channels = work.images.shape[-1], work.images.channels
        words = f"{figures.machine['device']}, torch {figures.machine['torch']}, ours in {work.computed}"
        words += f"; images of {side}x{side}, {channels} channels"
        for title, lines in image_tables(figures):
            print_table(lines, f"{title}: {words}", names=2)
        typer.echo(COLUMNS + ("" if work.device.type == "cuda" else NOISE))
        if checks:
            print_checks(checks)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


COLUMNS = (
    "x peer: how many times as fast as the peer. overhead: over vanilla's step. of product: the share of the rate at"
    " which this machine multiplies large matrices. at best ms: what a step would take at that rate."
)
NOISE = " On a CPU the network is tiny and times vary by half: that it runs is all that this shows."


def _tell(what: str) -> None:
    console.print(f"measuring: {escape(what)}", highlight=False)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError as error:
        raise UsageError(f"{option} is '{text}'; give whole numbers with commas, as in 3,32.") from error
