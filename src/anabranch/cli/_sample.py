"""The verb `anabranch sample`: points of a flow, or samples of chosen attributes from a composition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from anabranch.cli._show import console, sentences
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.runs import ComposedSamples, Sampling

MOST_CELLS = 2500  # combinations beyond which no grid is drawn


@sentences
def sample(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a checkpoint.")],
    count: Annotated[
        int | None,
        typer.Option("--n", help="How many samples: 1000; with attributes 16; in each cell of a grid 1."),
    ] = None,
    nfe: Annotated[
        int | None, typer.Option("--nfe", help="Function evaluations of the solver; 10, with attributes 50.")
    ] = None,
    solver: Annotated[
        str,
        typer.Option(
            help="euler, midpoint, heun, rk4 or dopri5 (which chooses its own steps); euler, with attributes midpoint."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the source points.")] = 0,
    attributes: Annotated[
        str | None, typer.Option(help="Of a composition: what to sample, as in digit=0,color=yellow; the rest is open.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Of a composition: draw every combination in one picture; novel ones framed.")
    ] = False,
    how: Annotated[
        str | None,
        typer.Option(
            help="joint, guided (joint, sharpened by --weights: best for images), composed, or auto: composed where no"
            " silo has seen the combination."
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(help="How strongly attributes count: one number, or, when composed, one each, as in 1,2."),
    ] = "",
    until: Annotated[
        float,
        typer.Option(help="The time in [0, 1] at which weights become one: later they only make images bolder."),
    ] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write: .npy, .csv (decoded, for tables) or .png; by default samples.npy, a grid samples.png."
        ),
    ] = None,
) -> None:
    """Draw samples from a trained flow; from a composition, with the attributes you choose.

    For example [bold]anabranch sample RUN --attributes digit=0,color=yellow --out zeros.png[/bold], also where no silo
    has seen a yellow zero, or [bold]anabranch sample RUN --grid --out grid.png[/bold].
    """
    from anabranch.runs import RunFolder, Sampling

    if count is not None and count < 1:
        raise UsageError(f"{count} samples were asked for; ask for at least one.")
    if not RunFolder(run).config().composes:
        if attributes is not None or grid or how is not None or weights or until != 1.0:
            raise UsageError(
                f"{run} ran '{RunFolder(run).config().method}', which knows no attributes; leave out --attributes,"
                " --grid, --how, --weights and --until."
            )
        _plain(run, count or 1000, 10 if nfe is None else nfe, solver or "euler", seed, out or Path("samples.npy"))
        return
    if how == "guided" and not weights:
        raise UsageError(
            "--how guided sharpens by --weights, and without them costs twice what --how joint does for the same"
            " samples; give one, as in --how guided --weights 3 --until 0.5."
        )
    steps = None if solver == "dopri5" else 50 if nfe is None else nfe
    sampling = Sampling(steps, solver or "midpoint", seed, how or "auto", _numbers(weights), until)
    if grid:
        if attributes is not None:
            raise UsageError("--grid draws all attributes, --attributes some of them; give one of both.")
        _grid(run, count, sampling, out or Path("samples.png"))
    else:
        _chosen(run, attributes or "", count or 16, sampling, out or Path("samples.npy"))


def _plain(run: Path, count: int, nfe: int, solver: str, seed: int, out: Path) -> None:
    from anabranch.report import draw_sheet
    from anabranch.runs import RunFolder, draw_samples, save_samples

    flow = draw_samples(run, count, None if solver == "dopri5" else nfe, solver, seed)
    shape = tuple(RunFolder(run).config().images.shape)

    def sheet() -> bytes:
        return draw_sheet(flow.x1.numpy(), shape, f"{run.name}: {flow.evaluations} evaluations")

    save_samples(run, flow.x1, out, sheet if shape else None)
    typer.echo(f"{count} samples with {flow.evaluations} function evaluations: {out}")


def _chosen(run: Path, attributes: str, count: int, sampling: Sampling, out: Path) -> None:
    from anabranch.report import draw_cloud, draw_sheet
    from anabranch.runs import draw_composed, write_samples

    found = draw_composed(run, attributes, count, sampling)
    title = attributes.replace(",", ", ") or "no attribute given"

    def picture() -> bytes:
        return draw_sheet(found.x.numpy(), found.shape, title) if found.shape else draw_cloud(found.x.numpy(), title)

    write_samples(found.x, out, found.table, picture)
    if not _follows(found):
        _warn(
            "What was asked for does not follow from what silos have seen, so that nothing says whether these samples"
            " are right; anabranch coverage says what is missing."
        )
    typer.echo(f"{count} samples{_seen(found)} with {found.evaluations} function evaluations: {out}")


def _grid(run: Path, count: int | None, sampling: Sampling, out: Path) -> None:
    from anabranch.federation import write_atomically
    from anabranch.report import Cells, draw_grid
    from anabranch.runs import RunFolder, draw_every

    if out.suffix != ".png":
        raise UsageError(f"A grid is a picture, and '{out}' was given for it; it must end in .png.")
    found = draw_every(run, count, sampling, MOST_CELLS)
    masks = found.coverage.observed.numpy(), found.coverage.determined.numpy()
    cells = Cells(found.x.numpy(), found.space.encode(found.codes).numpy(), found.space, *masks, found.shape)
    write_atomically(out, draw_grid(cells, f"{run.name}: {RunFolder(run).config().method}, {sampling.how}"))
    lost = int((~found.coverage.determined).sum())
    if lost:
        _warn(
            f"{lost} of {len(found.space)} combinations do not follow from what silos have seen, so that nothing says"
            " whether their samples, if there are any, are right; anabranch coverage says what is missing."
        )
    novel = len(found.coverage.novel)
    typer.echo(f"{len(found.space)} combinations, {novel} of them seen by no silo: {out}")


def _follows(found: ComposedSamples) -> bool:
    """Whether some combination with the attributes that were asked for follows from the observed ones."""
    asked, every = found.codes[0], found.space.combinations()
    of_these = ((asked < 0) | (every == asked)).all(dim=1)
    return bool(found.coverage.determined[of_these].any())


def _warn(sentence: str) -> None:
    console.print(f"[yellow]{escape(sentence)}[/yellow]", highlight=False)


def _seen(found: ComposedSamples) -> str:
    """Whether any silo has seen the combination, where a whole one was asked for."""
    if bool((found.codes < 0).any()):
        return ""
    label = int(found.space.encode(found.codes[0]))
    silos = [silo for silo in found.coverage.counts if found.coverage.holds(silo)[label]]
    if not silos:
        return " of a combination that no silo has seen,"
    return f" of a combination that {len(silos)} of {len(found.coverage.counts)} silos have seen,"


def _numbers(text: str) -> tuple[float, ...] | None:
    if not text:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--weights is '{text}'; give numbers separated by commas, as in 1,2.") from error
