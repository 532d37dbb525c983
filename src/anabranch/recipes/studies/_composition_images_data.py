"""Images with attributes for the study `composition_images`: what silos hold, and what samples are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import Attributed, AttributeSpace, attributed, divide, observed_mask
from anabranch.errors import UsageError, unknown
from anabranch.federation import Silo
from anabranch.recipes._study import StudyCell

SIDES = ("known", "novel")
UNBOUNDED = 2**62  # a study's silos trust it: a convolutional network may cost what it costs
DRAWN = AttributeSpace.of(
    {
        "shape": ["square", "disc", "diamond"],
        "scale": ["small", "medium", "large"],
        "position": ["top-left", "top-right", "bottom-left", "bottom-right"],
    }
)
"""What "shapes" shows: dSprites in the small, drawn instead of fetched."""


@dataclass(frozen=True)
class Scene:
    """The images of one cell: training images by silo, and test images of known and of novel combinations."""

    silos: dict[str, Attributed]
    real: dict[str, Attributed]
    observed: Tensor
    space: AttributeSpace
    shape: tuple[int, int, int]

    def federation(self, seed: int, device: torch.device) -> list[Silo]:
        """The silos, afresh, with their images on the device."""
        found = [
            Silo(name, part.x.to(device), part.label, secret=seeds.derive(seed, "secret", name), space=self.space)
            for name, part in self.silos.items()
        ]
        for silo in found:
            silo.most_work = silo.most_numbers = UNBOUNDED
        return found


def scene(cell: StudyCell) -> Scene:
    """What the cell's options describe: images of observed combinations divided among silos."""
    options = cell.options
    train = images(options, "train", options["observed"], options["train"], cell.seed)
    # Problems that are to be compared silo by silo can share a division.
    generator = seeds.generator(cell.seed, "silos", options.get("division", cell.problem))
    parts = divide(train, options["partition"], options["silos"], generator, options["alpha"])
    assert train.shape is not None
    observed = observed_mask(train.space, options["observed"])
    real = {side: images(options, "test", mask, options["samples"]) for side, mask in sides(observed).items()}
    return Scene({name: train[index] for name, index in parts.items()}, real, observed, train.space, train.shape)


def sides(observed: Tensor) -> dict[str, Tensor]:
    """The masks (|Y|,) of known and of novel combinations."""
    return dict(zip(SIDES, (observed, ~observed), strict=True))


def images(
    options: Mapping[str, Any], split: str, observed: Tensor | str | None, count: int | None, seed: int = 0
) -> Attributed:
    """Images of the cell's source with these combinations; `count` 0 or None is all there are."""
    if options["source"] == "shapes":
        return shapes(split, count or 0, seed, observed, **options.get("source_options", {}))
    return attributed(
        options["source"], split, count or None, seed, observed=observed, **options.get("source_options", {})
    )


def shapes(
    split: str, count: int, seed: int, observed: Tensor | str | Sequence[str | int] | None = None, side: int = 12
) -> Attributed:
    """`count` grey images, their combinations uniform among the observed ones; they jitter by a sixteenth of the side.

    A shape is a ball of a norm around its centre: of ‖·‖_∞ a square, of ‖·‖_2 a disc, of ‖·‖_1 a diamond; radii make
    the three cover about as much. Pixels at an edge are grey in proportion.

    >>> shapes("train", 5, 0, "minimal").x.shape
    torch.Size([5, 144])
    """
    if count < 1:
        raise UsageError(f"{count} shapes were asked for; they are drawn, so say how many.")
    random = seeds.generator(seed, "shapes", split)
    weight = observed_mask(DRAWN, observed).double()
    label = torch.multinomial(weight, count, replacement=True, generator=random)
    kind, scale, place = DRAWN.decode(label).unbind(1)
    corner = torch.stack([place // 2, place % 2], dim=1) * (side / 2) + side / 4 - 0.5
    centre = corner + (2 * torch.rand(count, 2, generator=random) - 1) * side / 16
    radius = torch.tensor([1.6, 2.3, 3.2])[scale] * torch.tensor([0.9, 1.05, 1.3])[kind] * side / 16
    axis = torch.arange(side, dtype=torch.float32)
    down, across = (axis - centre[:, :1]).abs()[:, :, None], (axis - centre[:, 1:]).abs()[:, None, :]
    norms = torch.stack([torch.maximum(down, across), (down**2 + across**2).sqrt(), down + across])
    away = norms[kind, torch.arange(count)] - radius[:, None, None]
    return Attributed((0.5 - away).clamp(0, 1).flatten(1) * 2 - 1, label, DRAWN, (1, side, side))


def chosen_device(name: str) -> torch.device:
    """ "auto" is a GPU where there is one, and the CPU elsewhere; a cell does not record which it was."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise unknown("device", name, ["auto", "cpu", "cuda"])
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("The device 'cuda' was asked for, and there is none here; take 'auto' or 'cpu'.")
    return torch.device(name)
