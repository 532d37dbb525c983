"""The verb `anabranch sample`: points of a flow, or samples of chosen attributes from a composition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli._show import sentences
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from anabranch.runs import Chosen, Computing, Sampling

MOST_CELLS = 2500  # combinations beyond which no grid is drawn


@sentences
def sample(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder with a checkpoint, or a folder that export wrote.")
    ],
    count: Annotated[
        int | None,
        typer.Option(
            "--n", help="How many samples: 1000, in one picture of images 64; with attributes 16; in a grid's cell 1."
        ),
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
    of_class: Annotated[
        str,
        typer.Option(
            "--class",
            help="Of a flow that is told classes (flow.classes): the number of one, or each: all in turn. Sharpened by"
            " --weights 2 --until 0.5, which runs the network twice an evaluation.",
        ),
    ] = "",
    grid: Annotated[
        bool, typer.Option("--grid", help="Of a composition: draw every combination in one picture; novel ones framed.")
    ] = False,
    how: Annotated[
        str | None,
        typer.Option(
            help="joint, guided (joint, sharpened by --weights: best for images), composed, within (composed by each"
            " expert for itself), or auto: composed where no silo has seen the combination."
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="How strongly attributes, or a class, count: one number, or, when composed, one each, as in 1,2."
        ),
    ] = "",
    until: Annotated[
        float,
        typer.Option(help="The time in [0, 1] at which weights become one: later they only make images bolder."),
    ] = 1.0,
    out: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Where to write, in the form that the ending asks for: grid.png (one picture of all), samples.npz"
            " (images as bytes, n x height x width x colours, under 'images'; points as rows under 'x'; attributes"
            " beside them), pictures/ (a folder: 00000.png and so on), .npy (rows) or .csv (rows, decoded for tables)."
            " Pictures that the same command left in a folder when it was interrupted are kept, and it goes on behind"
            " them; files are overwritten. By default samples.npy, of a grid samples.png.",
        ),
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(
            help="How many are computed at a time, as memory allows; samples are the same, but for rounding and for"
            " dopri5. By default 512 images on a GPU, 64 on a CPU, 65536 points."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto (a GPU for images where there is one), cpu or cuda. Noise is the same on all.")
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="float32, or bfloat16 for images on a GPU that can. By default as the run was trained; dopri5 takes"
            " no less than float32."
        ),
    ] = "",
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="On a GPU: have torch compile the network, which takes a minute. By default for more than some 260 000"
            " evaluations of images, where it pays.",
        ),
    ] = None,
) -> None:
    """Draw samples from a trained flow; from a composition, with the attributes you choose.

    A look at a flow of images: [bold]anabranch sample RUN --nfe 3 --n 64 --out grid.png[/bold]. For FID and the like:
    [bold]anabranch sample RUN --nfe 50 --n 50000 --out pictures/[/bold], or samples.npz. Seeds give the same noise
    whatever the batch and the device.

    With attributes, for example [bold]anabranch sample RUN --attributes digit=0,color=yellow --out zeros.png[/bold],
    also where no silo has seen a yellow zero, or [bold]anabranch sample RUN --grid --out grid.png[/bold].
    """
    from anabranch.runs import Computing, Sampling, look_at

    if count is not None and count < 1:
        raise UsageError(f"{count} samples were asked for; ask for at least one.")
    if batch is not None and batch < 1:
        raise UsageError(f"--batch is {batch}; at least one sample is computed at a time.")
    if solver == "dopri5" and nfe is not None:
        raise UsageError(
            f"dopri5 chooses its own number of evaluations; leave out --nfe {nfe}, or take another solver."
        )
    kept, computing = look_at(run), Computing(batch or 0, device, precision, compiled)
    if not kept.composes:
        if attributes is not None or grid or how is not None or ((weights or until != 1.0) and not of_class):
            raise UsageError(
                f"{run} was made by '{kept.method}', which knows no attributes; leave out --attributes, --grid and"
                f" --how, and {'give a --class with' if kept.classes else 'likewise'} --weights and --until."
            )
        strength = _numbers(weights)
        if strength is not None and len(strength) > 1:
            raise UsageError(f"--weights is '{weights}'; a class has one weight, as in --weights 2.")
        steps = _steps(nfe, solver, 10)
        sampling = Sampling(steps, solver or "euler", seed, weights=strength, until=until)
        _plain(run, kept.images, count, sampling, of_class, computing, out or "samples.npy")
        return
    if of_class:
        raise UsageError(f"{run} composes attributes, which --attributes names; leave out --class.")
    if how == "guided" and not weights:
        raise UsageError(
            "--how guided sharpens by --weights, and without them costs twice what --how joint does for the same"
            " samples; give one, as in --how guided --weights 3 --until 0.5."
        )
    steps = _steps(nfe, solver, 50)
    sampling = Sampling(steps, solver or "midpoint", seed, how or "auto", _numbers(weights), until)
    if grid:
        if attributes is not None:
            raise UsageError("--grid draws all attributes, --attributes some of them; give one of both.")
        _grid(run, kept.method, count, sampling, computing, Path(out or "samples.png"))
    else:
        _chosen(run, attributes or "", count or 16, sampling, computing, out or "samples.npy")


def _steps(nfe: int | None, solver: str, usual: int) -> int | None:
    return None if solver == "dopri5" else usual if nfe is None else nfe


def _plain(
    run: Path, images: bool, count: int | None, sampling: Sampling, of_class: str, computing: Computing, out: str
) -> None:
    from anabranch.cli._sample_shown import write
    from anabranch.report import draw_cloud
    from anabranch.runs import form_of, open_flow

    usual = 64 if images and form_of(out) == ".png" else 1000

    def picture(x: Tensor, evaluations: float) -> bytes:
        return draw_cloud(x.numpy(), f"{len(x)} samples, {evaluations:.10g} evaluations")

    write(open_flow(run, count or usual, sampling, computing, of_class), out, None if images else picture)


def _chosen(run: Path, attributes: str, count: int, sampling: Sampling, computing: Computing, out: str) -> None:
    from anabranch.cli._sample_shown import warn, write
    from anabranch.report import draw_cloud, draw_sheet
    from anabranch.runs import open_chosen

    found = open_chosen(run, attributes, count, sampling, computing)
    title = attributes.replace(",", ", ") or "no attribute given"

    def picture(x: Tensor, evaluations: float) -> bytes:
        shape = found.drawing.shape
        return draw_sheet(x.numpy(), shape, title) if shape else draw_cloud(x.numpy(), title)

    write(found.drawing, out, picture, _seen(found))
    if not _follows(found):
        warn(
            "What was asked for does not follow from what silos have seen, so that nothing says whether these samples"
            " are right; anabranch coverage says what is missing."
        )


def _grid(run: Path, method: str, count: int | None, sampling: Sampling, computing: Computing, out: Path) -> None:
    from anabranch.cli._sample_shown import warn
    from anabranch.federation import write_atomically
    from anabranch.report import Cells, draw_grid
    from anabranch.runs import draw_every

    if out.suffix != ".png":
        raise UsageError(f"A grid is a picture, and '{out}' was given for it; it must end in .png.")
    found = draw_every(run, count, sampling, MOST_CELLS, computing)
    masks = found.coverage.observed.numpy(), found.coverage.determined.numpy()
    cells = Cells(found.x.numpy(), found.space.encode(found.codes).numpy(), found.space, *masks, found.shape)
    write_atomically(out, draw_grid(cells, f"{run.name}: {method}, {sampling.how}"))
    lost = int((~found.coverage.determined).sum())
    if lost:
        warn(
            f"{lost} of {len(found.space)} combinations do not follow from what silos have seen, so that nothing says"
            " whether their samples, if there are any, are right; anabranch coverage says what is missing."
        )
    novel = len(found.coverage.novel)
    typer.echo(f"{len(found.space)} combinations, {novel} of them seen by no silo: {out}")


def _follows(found: Chosen) -> bool:
    """Whether some combination with the attributes that were asked for follows from the observed ones."""
    asked, every = found.codes[0], found.coverage.space.combinations()
    of_these = ((asked < 0) | (every == asked)).all(dim=1)
    return bool(found.coverage.determined[of_these].any())


def _seen(found: Chosen) -> str:
    """Whether any silo has seen the combination, where a whole one was asked for."""
    if bool((found.codes < 0).any()):
        return ""
    label = int(found.coverage.space.encode(found.codes[0]))
    silos = [silo for silo in found.coverage.counts if found.coverage.holds(silo)[label]]
    if not silos:
        return " of a combination that no silo has seen,"
    if not found.by_silo:
        return " of a combination that some silo has seen,"
    return f" of a combination that {len(silos)} of {len(found.coverage.counts)} silos have seen,"


def _numbers(text: str) -> tuple[float, ...] | None:
    if not text:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--weights is '{text}'; give numbers separated by commas, as in 1,2.") from error
