"""Which form samples are written in: the ending of a name decides."""

from __future__ import annotations

import os
from pathlib import Path

from anabranch.data import Table
from anabranch.errors import UsageError
from anabranch.federation import write_atomically
from anabranch.runs._sample_drawing import Drawing, check_columns
from anabranch.runs._sample_files import ArrayFile, Picture, WholeFile, image_bytes
from anabranch.runs._sample_pictures import PictureFolder, check_colours, draw_tiles

FOLDER = "/"
ARRAYS = "samples.npz"  # in a run folder
MOST_SHOWN = 400  # images in one picture


def form_of(out: str) -> str:
    """ ".png", ".npz", ".npy" or ".csv"; or "/" for a folder, which is there or whose name ends so."""
    if out.endswith(("/", os.sep)) or Path(out).is_dir():
        return FOLDER
    form = Path(out).suffix
    if form not in (".png", ".npz", ".npy", ".csv"):
        raise UsageError(
            f"Samples cannot be written as '{form or out}'. End the name in .png for one picture of all, in .npz for an"
            " archive (images as bytes), or in / for a folder with one picture each; rows of numbers can go to .npy or"
            " .csv as well."
        )
    return form


def open_file(out: str, drawing: Drawing, picture: Picture | None = None) -> ArrayFile | WholeFile | PictureFolder:
    """Where samples go that are to be written there, as a context; `picture` draws all of them in one.

    Images need none to be given: they are put side by side.
    """
    form, path = form_of(out), Path(out)
    if form == FOLDER:
        return PictureFolder(path, drawing)
    if form in (".npy", ".npz"):
        _check_place(path)
        return ArrayFile(path, drawing)
    if form == ".csv":
        check_columns(drawing.columns, drawing.attributes)
        return WholeFile(path, lambda x, evaluations: _write_table(drawing.table(x), path))
    if picture is None:
        picture = _tiles(drawing.shape)
    if drawing.shape and drawing.count > MOST_SHOWN:
        raise UsageError(
            f"One picture shows at most {MOST_SHOWN} images, and {drawing.count} were asked for; give --n {MOST_SHOWN},"
            " or write them to a folder (end its name in /) or to .npz."
        )

    return WholeFile(path, lambda x, evaluations: write_atomically(path, picture(x, evaluations)))


def _check_place(path: Path) -> None:
    """Refuses the archive that a run folder has of its own, from which reports are drawn."""
    if path.name == ARRAYS and (path.parent / "config.json").exists():
        raise UsageError(f"'{path}' is where the run keeps what its report shows; choose another name with --out.")


def _write_table(table: Table, path: Path) -> None:
    """In one step: what was there stays until the new file is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        table.write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _tiles(shape: tuple[int, ...]) -> Picture:
    if not shape:
        raise UsageError("These samples are points, and nothing was given to draw them by; write .npy, .npz or .csv.")
    check_colours(shape)
    return lambda x, evaluations: draw_tiles(image_bytes(x, shape))
