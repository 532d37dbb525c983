"""The verb `anabranch fid`: how far pictures are from real ones."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.cli._show import console, print_table, sentences
from anabranch.cli._silos import Json
from anabranch.errors import DataError, UsageError, spared

if TYPE_CHECKING:
    from torch import Tensor

    from anabranch.metrics import Inception, Reference


@sentences
def fid(
    made: Annotated[str, typer.Argument(metavar="MADE", help="Pictures that were made: a folder, or an .npz archive.")],
    real: Annotated[
        str, typer.Argument(metavar="REAL", help="Real ones: a folder, an .npz archive, or a set, as in cifar10:test.")
    ],
    device: Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu or cuda.")] = "auto",
    batch: Annotated[int, typer.Option(help="How many are looked at at a time, as memory allows.", min=1)] = 64,
    as_json: Json = False,
) -> None:
    """FID and KID of pictures against real ones, by the usual network and its usual conventions.

    Of a trained flow: [bold]anabranch sample RUN --nfe 50 --n 10000 --out made/[/bold], then [bold]anabranch fid made/
    north/[/bold]. Archives hold bytes under 'images', n x height x width x colours, as 'anabranch sample' writes them.
    The network comes by [bold]anabranch data get inception[/bold]. Few pictures make FID too large, and a sentence says
    by how much; compare values of as many pictures alone.
    """
    from anabranch.metrics import Inception, fid_report
    from anabranch.metrics._fid_report import BLOCKS
    from anabranch.runs import Computing

    with _spared("pictures and the network were read", "give fewer pictures"):
        inception = Inception.load(device=Computing(device=device).place(images=True))
        there, here = _found(real), _found(made)  # both, before the long look at either
    _say_sizes(here, there)
    smaller = ["give a smaller --batch"] if batch > 1 else []
    with _spared(f"pictures were looked at, {batch} at a time", *smaller):
        held, drawn = there.looked_at(inception, batch), here.looked_at(inception, batch)
    assert drawn.features is not None  # only who keeps statistics alone has none
    with _spared("pictures were compared", "give fewer of them"):
        rows = fid_report(drawn.features, {"real": held})
    if as_json:
        typer.echo(json.dumps({"made": made, "real": real, "rows": rows}))
        return
    words = {"fid_real": "FID", "kid_real": "KID", "kid_real_error": "its standard error"}
    lines = [[words[row["metric"]], f"{row['value']:.4g}", str(row["images"]), str(row["real"])] for row in rows]
    print_table([["", "value", "pictures", "real ones"], *lines], f"{made} against {real}")
    if not any(row["metric"] == "kid_real" for row in rows):
        console.print(f"KID is left out: it needs {2 * BLOCKS} pictures on both sides.", highlight=False)


@dataclass(frozen=True)
class Side:
    """Pictures (n, colours, height, width) as somebody named them; `split` says of which set's split, if any."""

    name: str
    images: Tensor
    split: tuple[str, str] | None = None

    def looked_at(self, inception: Inception, batch: int) -> Reference:
        """The pictures as the network sees them; a set's are kept."""
        from anabranch.metrics import Reference, reference

        with _bar(self.name) as progress:
            if self.split is not None:
                return reference(*self.split, inception, images=self.images, batch=batch, progress=progress)
            return Reference.of(inception.features(self.images, batch, progress))


def _found(name: str) -> Side:
    """The pictures of this name."""
    from anabranch.data import load_folder, load_image_bytes, load_images

    path, split = Path(name), None
    if path.is_dir():
        images = load_folder(path, keep=False).images
    elif path.suffix == ".npz":
        images = load_image_bytes(path)
    elif ":" in name:
        known, _, part = name.partition(":")
        images, split = load_images(known, part).images, (known, part)
    else:
        raise UsageError(f"'{name}' is no folder, no .npz archive, and no set's split such as cifar10:test.")
    if len(images) < 2:
        held = "1 picture" if len(images) else "no pictures"
        raise DataError(f"'{name}' holds {held}; a distance needs two or more on both sides.")
    return Side(name, images, split)


def _say_sizes(made: Side, real: Side) -> None:
    """A sentence where pictures differ in size: the network stretches all of them, and sees what is coarse."""
    sizes = [" x ".join(map(str, side.images.shape[2:])) for side in (made, real)]
    if sizes[0] != sizes[1]:
        warnings.warn(
            f"'{made.name}' holds pictures of {sizes[0]}, '{real.name}' of {sizes[1]}. How sharp they are counts in"
            " FID; make them equally large first, unless that is what you want to know.",
            stacklevel=2,
        )


def _spared(what: str, *ways: str) -> AbstractContextManager[None]:
    """Within, memory that runs out becomes a sentence."""
    return spared(
        lambda: f"Memory ran out while {what}; {', or '.join([*ways, 'have other programs leave more memory'])}."
    )


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line that says what takes its time."""
    if not console.is_terminal:
        console.print(f"Looking at {escape(name)}.", highlight=False)
        yield lambda done, of: None
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(name), total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
