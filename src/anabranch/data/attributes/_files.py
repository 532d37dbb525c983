"""Samples with attributes in files: one `.npz` archive a silo."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from anabranch.data._points import check_points
from anabranch.data._table import MISSING
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._space import NULL, AttributeSpace
from anabranch.data.attributes._union import in_order, union
from anabranch.data.attributes._words import quoted
from anabranch.errors import DataError, UsageError

RESERVED = ("x", "shape")  # arrays of an archive that are no attributes
Array = numpy.ndarray[Any, Any]


def load_attributed(path: str | Path, names: Sequence[str] = (), space: AttributeSpace | None = None) -> Attributed:
    """Points `x` (n, d) and the named attributes, each an array (n,) of text or whole numbers, from a `.npz` archive.

    Without names every array but `x` and `shape` is an attribute. `shape` (3,) says that the rows are images. Without
    a space the outcomes are those of the file, in order, and an attribute may have only one; a given space must hold
    them all. Nothing is unpickled; a sample of which an attribute is missing is refused by its row.
    """
    path = Path(path)
    if space is not None and not names:
        names = space.names
    arrays = _arrays(path, names)
    x = check_points(arrays["x"], f"'{path.name}'", smallest=1)
    texts = {name: _texts(path, name, values, len(x)) for name, values in arrays.items() if name not in RESERVED}
    try:
        own = AttributeSpace(tuple((name, in_order(set(column))) for name, column in texts.items()))
        label = own.encode(torch.stack([_codes(texts[name], outcomes) for name, outcomes in own.attributes], dim=1))
        if space is not None:
            label = own.recode(label, space)
        return Attributed(x, label, space or own, _shape(arrays.get("shape")))
    except DataError as error:
        raise DataError(f"'{path.name}' cannot be used. {error}") from error


def load_silos(paths: Mapping[str, str | Path], names: Sequence[str] = ()) -> dict[str, Attributed]:
    """The files of several silos, in the one space that holds the outcomes of all."""
    loaded = {silo: load_attributed(path, names) for silo, path in paths.items()}
    space = union({silo: data.space for silo, data in loaded.items()})
    forms = {silo: (data.x.shape[1], data.shape) for silo, data in loaded.items()}
    if len(set(forms.values())) > 1:
        (first, form), (other, another) = next((a, b) for a in forms.items() for b in forms.items() if a[1] != b[1])
        raise DataError(f"Silo '{first}' holds {_form(form)}, silo '{other}' {_form(another)}; all need the same.")
    return {
        silo: Attributed(data.x, data.space.recode(data.label, space), space, data.shape)
        for silo, data in loaded.items()
    }


def save_attributed(path: str | Path, data: Attributed) -> None:
    """Writes what `load_attributed` reads; the outcomes as text."""
    path = Path(path)
    if path.suffix != ".npz":
        raise UsageError(f"'{path.name}' is no .npz archive; name it so.")
    if any(name in RESERVED for name in data.space.names):
        raise DataError("An attribute is named 'x' or 'shape', which an archive needs for itself; rename it.")
    codes = data.codes.cpu()
    columns = {
        name: numpy.array(outcomes)[codes[:, place].numpy()]
        for place, (name, outcomes) in enumerate(data.space.attributes)
    }
    extra = {} if data.shape is None else {"shape": numpy.array(data.shape)}
    arrays: dict[str, Any] = {"x": data.x.cpu().numpy(), **columns, **extra}
    numpy.savez_compressed(path, **arrays)


def _form(form: tuple[int, tuple[int, int, int] | None]) -> str:
    return f"rows of {form[0]} numbers" if form[1] is None else f"images of {' × '.join(map(str, form[1]))}"


def _arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    if path.suffix != ".npz":
        raise UsageError(f"'{path.name}' is no .npz archive; save x and one array for each attribute with numpy.savez.")
    try:
        loaded = numpy.load(path, allow_pickle=False)
        if isinstance(loaded, numpy.ndarray):
            raise ValueError("an array, not an archive")
        with loaded as archive:
            wanted = ["x", *(names or [name for name in archive.files if name not in RESERVED])]
            lost = [name for name in wanted if name not in archive.files]
            if lost:
                raise DataError(f"'{path.name}' has no array {quoted(lost)}; it holds {quoted(sorted(archive.files))}.")
            if "shape" in archive.files:
                wanted.append("shape")
            return {name: numpy.asarray(archive[name]) for name in wanted}
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except DataError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"'{path.name}' does not hold plain arrays; it is damaged, or holds objects, which are never unpickled."
        ) from error


def _texts(path: Path, name: str, values: Array, count: int) -> list[str]:
    """The outcomes of all samples as text; refuses a sample that has none."""
    if values.shape != (count,) or values.dtype.kind not in "Uiuf":
        raise DataError(
            f"'{name}' in '{path.name}' has shape {values.shape} and type {values.dtype}; an attribute has {count}"
            " texts or whole numbers, one for each sample."
        )
    if values.dtype.kind == "f":  # whole numbers become so when some are missing
        there = values[~numpy.isnan(values)]
        if bool((~numpy.isfinite(there)).any() or (there != numpy.rint(there)).any()):
            raise DataError(f"'{name}' in '{path.name}' has values that are not whole; gather them in a few classes.")
        texts = ["" if numpy.isnan(value) else str(int(value)) for value in values]
    else:
        texts = [str(value).strip() for value in values.tolist()]
    bad = [row for row, text in enumerate(texts) if text in MISSING]
    if not bad and values.dtype.kind in "if" and int(values.min(initial=0)) == NULL:
        raise DataError(
            f"Row {texts.index(str(NULL)) + 1} of '{path.name}' has '{name}' = −1, which stands for an attribute that"
            " is not given; every sample needs all attributes. Complete or leave out such rows; where −1 is an outcome"
            " like others, save this array as text."
        )
    if bad:
        others = ["", ", nor has 1 more row", f", nor have {len(bad) - 1} more rows"][min(len(bad), 3) - 1]
        raise DataError(
            f"Row {bad[0] + 1} of '{path.name}' has no '{name}'{others}; every sample needs all attributes. Complete"
            f" {'it or leave it' if len(bad) == 1 else 'them or leave them'} out."
        )
    return texts


def _codes(texts: Sequence[str], outcomes: Sequence[str]) -> Tensor:
    place = {outcome: number for number, outcome in enumerate(outcomes)}
    return torch.tensor([place[text] for text in texts])


def _shape(values: Array | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    if values.shape != (3,) or values.dtype.kind not in "iu" or bool((values < 1).any()):
        raise DataError("Its 'shape' is not three whole numbers: channels, height, width.")
    channels, height, width = values.tolist()
    return channels, height, width
