"""dSprites with three attributes: shape × scale × position."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from anabranch import seeds
from anabranch.data._dsprites import FACTORS
from anabranch.data._images import ImageSet, load_images
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._observed import observed_mask
from anabranch.data.attributes._space import AttributeSpace
from anabranch.errors import UsageError

SIDES = (64, 32, 16)
# Of six scales, those that differ by about the same factor: 0.5, 0.7, 1.0 are a √2 apart.
SCALES = {2: (0, 5), 3: (0, 2, 5), 6: tuple(range(6))}
GRIDS = {2: ("top", "bottom", "left", "right"), 3: ("top", "middle", "bottom", "left", "center", "right")}
_PLACES, _BLOCK = 32, 4096


def sprite_space(scales: int = 3, grid: int = 2) -> AttributeSpace:
    """Shape × scale × position, with `scales` sizes and a `grid` of positions each way.

    >>> [len(outcomes) for _, outcomes in sprite_space().attributes], sprite_space().attributes[2][1]
    ([3, 3, 4], ('top-left', 'top-right', 'bottom-left', 'bottom-right'))
    """
    for what, given, known in (("scales", scales, SCALES), ("grid", grid, GRIDS)):
        if given not in known:
            raise UsageError(f"{what} = {given} was given; it is one of {', '.join(map(str, known))}.")
    rows, columns = GRIDS[grid][:grid], GRIDS[grid][grid:]
    return AttributeSpace.of(
        {
            "shape": ["square", "ellipse", "heart"],
            "scale": [f"{0.5 + 0.1 * level:.1f}" for level in SCALES[scales]],
            "position": [f"{row}-{column}" for row in rows for column in columns],
        }
    )


def sprites(
    split: str,
    count: int | None,
    seed: int,
    observed: Tensor | str | None = None,
    side: int = 32,
    scales: int = 3,
    grid: int = 2,
    spread: int = 4,
    turns: int = 40,
) -> Attributed:
    """White shapes on black, as rows of side² numbers in [−1, 1] (64 × 64 averaged down to side × side).

    A position is a cell of the grid; a sprite lies within `spread` of the 32 places from the cell's centre, so that no
    sprite is on a boundary. Of the 40 orientations the first `turns` are used; orientation is no attribute.
    """
    space = sprite_space(scales, grid)
    if side not in SIDES or not 1 <= turns <= 40 or not 1 <= spread <= _PLACES:
        raise UsageError(
            f"side = {side}, turns = {turns} and spread = {spread} were given; side is 64, 32 or 16, turns lie in"
            f" 1 … 40 and spread in 1 … {_PLACES}."
        )
    images = load_images("dsprites", split)
    label = _labels(images, space, SCALES[scales], grid, spread, turns)
    usable = (label >= 0) & observed_mask(space, observed)[label.clamp(min=0)]
    found = usable.nonzero()[:, 0]
    if count is not None and count > len(found):
        raise UsageError(f"{count} sprites were asked for; with these options there are {len(found)}. Take fewer.")
    order = torch.randperm(len(found), generator=seeds.generator(seed, "dsprites", split))[:count]
    chosen = found[order]
    return Attributed(_rows(images, chosen, side), label[chosen], space, (1, side, side))


def _labels(
    images: ImageSet, space: AttributeSpace, levels: tuple[int, ...], grid: int, spread: int, turns: int
) -> Tensor:
    """The combination of each image (n,), −1 where it has none."""
    assert images.factors is not None
    shape, scale, turn, x, y = (images.factors[:, FACTORS.index(name)] for name in FACTORS[1:])
    size = torch.full((6,), -1)
    size[list(levels)] = torch.arange(len(levels))
    # dSprites' y grows downwards, as rows do
    row, column = _cell(y, grid, spread), _cell(x, grid, spread)
    inside = (size[scale] >= 0) & (row >= 0) & (column >= 0) & (turn < turns)
    codes = torch.stack([shape, size[scale], row * grid + column], dim=1)
    return torch.where(inside, space.encode(codes.clamp(min=0)), -1)


def _cell(place: Tensor, grid: int, spread: int) -> Tensor:
    """The cell of each of the 32 places, −1 for a place further than `spread` from its cell's centre.

    >>> _cell(torch.arange(32), 2, 2).tolist()[4:12]
    [-1, -1, 0, 0, 0, 0, -1, -1]
    """
    width = _PLACES / grid
    cell = ((place + 0.5) / width).long()
    near = (place + 0.5 - (cell + 0.5) * width).abs() < spread
    return torch.where(near, cell, -1)


def _rows(images: ImageSet, chosen: Tensor, side: int) -> Tensor:
    """The chosen images, a block at a time: in full size they can exceed the memory."""
    blocks = []
    for start in range(0, len(chosen), _BLOCK):
        pixels = images.images[chosen[start : start + _BLOCK]].float().div_(255)
        blocks.append(avg_pool2d(pixels, 64 // side).flatten(1).mul_(2).sub_(1))
    return torch.cat(blocks) if blocks else torch.empty(0, side * side)
