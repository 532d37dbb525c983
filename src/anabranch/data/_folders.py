"""One's own images: a folder of pictures, read once, then kept as plain arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import torch

from anabranch.data._cache import Progress, cache_folder, room_beside, told, write_array
from anabranch.data._images import ImageSet
from anabranch.data._layouts import Pixels
from anabranch.data._listing import Listing
from anabranch.data._picture import Framing
from anabranch.errors import DataError

KEPT = "folders"  # in the cache
_STAMP, _FORMAT = "stamp.json", 1


def load_folder(
    folder: str | Path, side: int = 0, colours: int = 0, *, keep: bool = True, progress: Progress | None = None
) -> ImageSet:
    """The pictures of `folder/CLASS/*.png` (or .jpg), labelled by class, or of a flat folder, with one class.

    With a `side` they are made smaller and cut to a square; without, all must be of one size. `colours` 1 or 3 turns
    all into grey or coloured ones; 0 takes them as they are, all alike. What is read is kept in the cache, readable by
    its owner alone, until a picture comes, goes or changes; with `keep` false nothing is written.
    """
    framing, listing = Framing(side, colours), Listing.of(folder)
    if not keep:
        pixels = listing.read(framing)
        return ImageSet(torch.from_numpy(pixels.array()), torch.from_numpy(pixels.label), listing.classes)
    place, facts = _place(listing.folder, framing), _facts(listing)
    found = _kept(place, facts)
    if found is None:
        _keep(
            place,
            facts,
            listing.read(framing),
            progress or (lambda what, done, total: None),
            listing.folder.resolve().name,
        )
        found = _kept(place, facts)
    if found is None:
        raise DataError(f"'{folder}' changed while it was read; leave it alone, and try again.")
    return found


def has_classes(folder: str | Path) -> bool:
    """Whether pictures lie in folders of classes, and not in the folder itself."""
    return len(Path(Listing.of(folder).files[0]).parts) > 1


def share_classes(sets: Iterable[ImageSet]) -> list[ImageSet]:
    """The same images with labels that mean the same in every set: they count in the sorted names of all classes.

    >>> image, zero = torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([0])
    >>> [found.label.item() for found in share_classes([ImageSet(image, zero, ("b",)), ImageSet(image, zero, ("a",))])]
    [1, 0]
    """
    sets = list(sets)
    classes = tuple(sorted({name for found in sets for name in found.classes}))
    number = [torch.tensor([classes.index(name) for name in found.classes]) for found in sets]
    return [ImageSet(one.images, of[one.label], classes) for one, of in zip(sets, number, strict=True)]


def _place(folder: Path, framing: Framing) -> Path:
    asked = f"{folder.resolve()}\0{framing.side}\0{framing.colours}"
    return cache_folder() / KEPT / sha256(asked.encode(errors="surrogateescape")).hexdigest()[:24]


def _facts(listing: Listing) -> dict[str, Any]:
    """What must not have changed since pictures were kept."""
    return {"format": _FORMAT, "pictures": listing.digest(), "classes": list(listing.classes)}


def _kept(place: Path, facts: dict[str, Any]) -> ImageSet | None:
    """What was kept of these pictures; nothing where they have changed, or what was kept is damaged."""
    try:
        stamp = json.loads((place / _STAMP).read_text())
        if stamp != facts:
            return None
        arrays = [numpy.load(place / f"{what}.npy", mmap_mode="c", allow_pickle=False) for what in ("images", "label")]
        images, label = (torch.from_numpy(numpy.asarray(array)) for array in arrays)
        return ImageSet(images, label, tuple(facts["classes"]))
    except (OSError, ValueError):
        return None


def _keep(place: Path, facts: dict[str, Any], pixels: Pixels, tell: Progress, name: str) -> None:
    """Writes images as they are read, beside the place, which they take at the end."""
    with room_beside(place) as work:
        new = work / "set"
        new.mkdir(mode=0o700)
        write_array(new / "label.npy", pixels.label.shape, pixels.label.dtype, [pixels.label])
        blocks = told(pixels, f"reading {name}", tell)
        write_array(new / "images.npy", pixels.shape, numpy.dtype(numpy.uint8), blocks)
        (new / _STAMP).write_text(json.dumps(facts))
        try:
            if place.exists():
                place.rename(work / "old")
            new.rename(place)
        except OSError:
            if _kept(place, facts) is None:  # else another process was quicker, with the same pictures
                raise
