"""Points that can be trusted: checked, split into training and held-out, read from files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from anabranch.data._pixels import Pixels
from anabranch.data._shapes import Points
from anabranch.errors import DataError, UsageError


@dataclass(frozen=True)
class Split:
    """Sorted, disjoint indices that together are 0 … n − 1."""

    train: Tensor
    held_out: Tensor


def check_points(
    x: Tensor | numpy.ndarray | Sequence[Sequence[float]],
    owner: str,
    dimension: int | None = None,
    smallest: int = 2,
) -> Tensor:
    """x as a contiguous float32 tensor (n, d) with finite entries, on the device it came from.

    Always float32, whatever came in: the networks compute in it, and one type for all silos keeps them alike.
    `owner` begins every complaint ("Silo 'b'"); `smallest` is how many are needed.

    >>> check_points([[0, 1], [2, float("nan")]], "Silo 'b'")
    Traceback (most recent call last):
    anabranch.errors.DataError: Silo 'b' holds 1 point of 2 that is not finite, the first in row 2 (row 1 is the
    first); remove or impute it.
    """
    points = _tensor(x, owner)
    if points.numel() == 0 and (points.ndim < 2 or len(points) == 0):
        raise DataError(f"{owner} holds no points; at least {smallest} are needed.")
    if points.ndim != 2:
        raise DataError(
            f"{owner} holds an array of shape {tuple(points.shape)}; points are the rows of an array"
            " with two dimensions."
        )
    if points.shape[1] == 0:
        raise DataError(f"{owner} holds points without coordinates; at least one column is needed.")
    if dimension is not None and points.shape[1] != dimension:
        raise DataError(
            f"{owner} has points in {points.shape[1]} dimensions, the others in {dimension};"
            " all silos must share one space."
        )
    if len(points) < smallest:
        held = f"{len(points)} point{'s' if len(points) > 1 else ''}"
        raise DataError(f"{owner} holds only {held}, at least {smallest} are needed.")
    bad = (~points.isfinite().all(dim=1)).nonzero()[:, 0]
    if len(bad):
        verb, them = ("is", "it") if len(bad) == 1 else ("are", "them")
        raise DataError(
            f"{owner} holds {len(bad)} point{'s' if len(bad) > 1 else ''} of {len(points)} that {verb} not"
            f" finite, the first in row {int(bad[0]) + 1} (row 1 is the first); remove or impute {them}."
        )
    return points


def _tensor(x: Tensor | numpy.ndarray | Sequence[Sequence[float]], owner: str) -> Tensor:
    if not isinstance(x, Tensor):
        try:
            array = numpy.asarray(x)
        except ValueError as error:
            raise DataError(f"{owner} holds rows of different lengths; points need one length.") from error
        if array.dtype.kind not in "fiub":
            raise DataError(f"{owner} holds values of type {array.dtype}; points are made of real numbers.")
        # What float32 cannot hold becomes infinite, and is refused as such.
        with numpy.errstate(over="ignore"):
            x = torch.from_numpy(array.astype(numpy.float32))
    if x.is_complex():
        raise DataError(f"{owner} holds values of type {x.dtype}; points are made of real numbers.")
    return x.detach().to(torch.float32).contiguous()


def split(count: int, fraction: float, generator: torch.Generator) -> Split:
    """Hold out about `fraction` of `count` points, drawn at random.

    A fraction above 0 leaves at least one point on each side.

    >>> parts = split(10, 0.2, torch.Generator().manual_seed(0))
    >>> len(parts.train), len(parts.held_out)
    (8, 2)
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"A fraction of {fraction} to hold out was given; it must lie in [0, 1).")
    needed = 2 if fraction > 0 else 1
    if count < needed:
        raise UsageError(f"{count} points cannot be split with a fraction of {fraction}; at least {needed} are needed.")
    held = min(max(round(count * fraction), 1), count - 1) if fraction > 0 else 0
    order = torch.randperm(count, generator=generator, device=generator.device).cpu()
    return Split(train=order[held:].sort().values, held_out=order[:held].sort().values)


def load_points(path: str | Path, attribute: str = "") -> Points:
    """Points from a `.npy` array (n, d), or from a `.npz` archive with `x` (n, d) and perhaps `label` (n,). Instead of
    `x` there may be `images` of bytes (n, height, width) or (n, height, width, colours), as `anabranch sample` writes.

    Nothing is unpickled; without labels every point has label 0. An archive may also hold the named attribute.
    """
    path = Path(path)
    arrays = _arrays(_loaded(path), {"x", "label", attribute}, path.name)
    return _points(arrays, path.name)


def has_labels(path: str | Path) -> bool:
    """Whether a file of points has labels; where it has none, all are 0."""
    path = Path(path)
    if path.suffix != ".npz":
        return False
    try:
        with numpy.load(path, allow_pickle=False) as archive:  # of which nothing but the names is read
            return "label" in archive.files
    except (OSError, ValueError, zipfile.BadZipFile):
        return "label" in _loaded(path)  # which says what is wrong with it


def load_samples(path: str | Path, attribute: str = "") -> Points | Pixels:
    """What `load_points` reads, with `images` kept as the bytes that they are: `Pixels`."""
    path = Path(path)
    arrays = _loaded(path)
    if "images" not in arrays:
        return _points(_arrays(arrays, {"x", "label", attribute}, path.name), path.name)
    _only(arrays, {"images", "label", attribute}, path.name)
    images = torch.from_numpy(numpy.ascontiguousarray(_colours_first(arrays["images"], path.name)))
    count, colours, height, width = images.shape
    if not count:
        raise DataError(f"'{path.name}' holds no images; at least 1 is needed.")
    return Pixels(images.flatten(1), _label(arrays, count, path.name), (colours, height, width))


def save_images(path: str | Path, pixels: Pixels) -> None:
    """Writes an archive that `load_samples` reads, and other programs too: colours come last there."""
    images = pixels.bytes.reshape(-1, *pixels.shape).permute(0, 2, 3, 1)
    numpy.savez(Path(path), images=images.cpu().numpy(), label=pixels.labels.cpu().numpy())


def _points(arrays: dict[str, numpy.ndarray], name: str) -> Points:
    x = check_points(arrays["x"], f"'{name}'", smallest=1)
    return Points(x, _label(arrays, len(x), name))


def _label(arrays: dict[str, numpy.ndarray], count: int, name: str) -> Tensor:
    """The labels of an archive with so many points; 0 where it has none."""
    label = arrays.get("label", numpy.zeros(count, dtype=numpy.int64))
    if label.shape != (count,) or label.dtype.kind not in "iu":
        raise DataError(
            f"'{name}' has labels of shape {label.shape} and type {label.dtype}; it needs {count} whole"
            " numbers, one for each point."
        )
    return torch.from_numpy(label.astype(numpy.int64))


def load_attribute(path: str | Path, attribute: str) -> list[str]:
    """The text of an attribute (n,) that a `.npz` archive holds beside its points."""
    path = Path(path)
    arrays = _loaded(path)
    points = "x" if "x" in arrays else "images"
    _only(arrays, {points, "label", attribute}, path.name)
    count = len(arrays[points])  # all that is wanted of them: images are as they lie there
    values = arrays.get(attribute)
    if values is None:
        raise DataError(f"'{path.name}' has no array '{attribute}' to divide by; it holds {', '.join(sorted(arrays))}.")
    if values.shape != (count,):
        raise DataError(
            f"'{attribute}' in '{path.name}' has shape {values.shape}; it needs {count} values, one a point."
        )
    return [str(value) for value in values.tolist()]


def load_image_bytes(path: str | Path) -> Tensor:
    """The `images` of a `.npz` archive as bytes (n, colours, height, width); they lie there as in `load_points`."""
    path = Path(path)
    arrays = _loaded(path)
    if "images" not in arrays:
        raise DataError(f"'{path.name}' holds {', '.join(sorted(arrays)) or 'nothing'}, and no array 'images'.")
    return torch.from_numpy(numpy.ascontiguousarray(_colours_first(arrays["images"], path.name)))


def _arrays(arrays: dict[str, numpy.ndarray], known: set[str], name: str) -> dict[str, numpy.ndarray]:
    """The arrays of a file with `x`, which `images` become."""
    if "images" in arrays and "x" not in arrays:
        first = _colours_first(arrays.pop("images"), name)
        arrays["x"] = first.reshape(len(first), -1).astype(numpy.float32) / numpy.float32(127.5) - 1
    _only(arrays, known, name)
    return arrays


def _only(arrays: dict[str, numpy.ndarray], known: set[str], name: str) -> None:
    """Refuses an archive without points, or with arrays that nobody asked for."""
    if not {"x", "images"} & arrays.keys() or not arrays.keys() <= known:
        raise DataError(
            f"'{name}' holds {', '.join(sorted(arrays)) or 'nothing'}; it must hold x, or images, and may hold label."
        )


def _loaded(path: Path) -> dict[str, numpy.ndarray]:
    """All arrays of a file, of which nothing is unpickled."""
    if path.is_dir():
        raise UsageError(f"'{path.name}' is a folder. If it holds pictures, write 'folder:{path.name}'.")
    if path.suffix not in {".npy", ".npz"}:
        raise UsageError(f"'{path.name}' is neither .npy nor .npz; save the points with numpy.save or numpy.savez.")
    try:
        loaded = numpy.load(path, allow_pickle=False)
        if isinstance(loaded, numpy.ndarray):
            return {"x": loaded}
        with loaded:
            return {name: numpy.asarray(loaded[name]) for name in loaded.files}
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"'{path.name}' does not hold plain arrays; it is damaged, or holds objects, which are never unpickled."
        ) from error


def _colours_first(images: numpy.ndarray, name: str) -> numpy.ndarray:
    """Images of bytes (n, height, width[, colours]) as (n, colours, height, width)."""
    if images.dtype != numpy.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise DataError(
            f"'{name}' holds images of shape {images.shape} and type {images.dtype}; they must be bytes (uint8), with"
            " sides (n, height, width) or (n, height, width, colours), of one colour or three."
        )
    if 0 in images.shape[1:]:
        raise DataError(f"'{name}' holds images of shape {images.shape}: none has a pixel.")
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
