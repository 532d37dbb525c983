"""Patterns of observed combinations: which cells of the attribute space the data has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from anabranch.data.attributes._space import NULL, AttributeSpace
from anabranch.errors import UsageError, unknown


def band(space: AttributeSpace, width: int | None = None) -> Tensor:
    """Cells (|Y|,) with Σ_i y_i mod m < width, m the largest |Y_i|; half of m, rounded up, if no width is given.

    With ten digits and ten colours and width 5: (digit + colour) mod 10 < 5, so that C = 1/2.

    >>> band(AttributeSpace.of({"a": "123", "b": "123"}), 1).reshape(3, 3).int().tolist()
    [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    """
    modulus = max(space.sizes)
    width = (modulus + 1) // 2 if width is None else width
    if not 1 <= width <= modulus:
        raise UsageError(f"A band of width {width} was asked for; its width lies in 1 … {modulus}.")
    return space.combinations().sum(dim=1) % modulus < width


def minimal(space: AttributeSpace) -> Tensor:
    """Cells (|Y|,) that differ from the first combination in one attribute at most: a star.

    They are as few as C_min allows (DCFM, eq. 2), and determine all others.

    >>> minimal(AttributeSpace.of({"a": "123", "b": "12"})).reshape(3, 2).int().tolist()
    [[1, 1], [1, 0], [1, 0]]
    """
    return (space.combinations() != 0).sum(dim=1) <= 1


def all_but_one(space: AttributeSpace, left_out: str | int | None = None) -> Tensor:
    """All cells (|Y|,) but one: the named one, else the last.

    >>> all_but_one(AttributeSpace.of({"a": "12", "b": "12"}), "a=2,b=1").int().tolist()
    [1, 1, 0, 1]
    """
    mask = torch.ones(len(space), dtype=torch.bool)
    mask[len(space) - 1 if left_out is None else combination_label(space, left_out)] = False
    return mask


def everything(space: AttributeSpace) -> Tensor:
    """All cells (|Y|,)."""
    return torch.ones(len(space), dtype=torch.bool)


OBSERVED: Mapping[str, Callable[[AttributeSpace], Tensor]] = MappingProxyType(
    {"all": everything, "all-but-one": all_but_one, "band": band, "minimal": minimal}
)
"""The patterns by name."""


def observed_mask(space: AttributeSpace, observed: Tensor | str | Sequence[str | int] | None) -> Tensor:
    """Cells (|Y|,) from a mask, a pattern's name (with a band's width: 'band:3'), or combinations; None is all.

    >>> space = AttributeSpace.of({"a": "12", "b": "12"})
    >>> observed_mask(space, "minimal").tolist(), observed_mask(space, ["a=1,b=2", 3]).tolist()
    ([True, True, True, False], [False, True, False, True])
    """
    if observed is None:
        return everything(space)
    if isinstance(observed, Tensor):
        if observed.shape != (len(space),) or observed.dtype != torch.bool:
            raise UsageError(
                f"A mask of shape {tuple(observed.shape)} and type {observed.dtype} was given; it must be true or"
                f" false for each of the {len(space)} combinations."
            )
        mask = observed.cpu()
    elif isinstance(observed, str):
        mask = _pattern(space, observed)
    else:
        mask = torch.zeros(len(space), dtype=torch.bool)
        for each in observed:
            mask[combination_label(space, each)] = True
    if not bool(mask.any()):
        raise UsageError("No combination is observed; there must be one at least.")
    return mask


def combination_label(space: AttributeSpace, combination: str | int) -> int:
    """The label of a combination that is given in words or as its label."""
    if isinstance(combination, str):
        codes = space.parse(combination)
        if bool((codes == NULL).any()):
            raise UsageError(f"'{combination}' is not a whole combination; give each of {', '.join(space.names)}.")
        return int(space.encode(codes))
    if not 0 <= combination < len(space):
        raise UsageError(f"{combination} names no combination; labels lie in 0 … {len(space) - 1}.")
    return int(combination)


def _pattern(space: AttributeSpace, text: str) -> Tensor:
    name, colon, width = text.partition(":")
    if name not in OBSERVED:
        raise unknown("pattern of observed combinations", name, OBSERVED)
    if not colon:
        return OBSERVED[name](space)
    if name != "band" or not width.isdecimal():
        raise UsageError(f"'{text}' was given; only a band has a width, as in 'band:3'.")
    return band(space, int(width))
