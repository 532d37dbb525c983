"""Data with attributes, by name: for practice, for tests, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

from anabranch.data._layouts import SPLITS
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._colored import colored_digits, colored_mnist
from anabranch.data.attributes._corners import corners
from anabranch.data.attributes._sprites import sprites
from anabranch.errors import UsageError, unknown

SOURCES: Mapping[str, Callable[..., Attributed]] = MappingProxyType(
    {"colored-digits": colored_digits, "colored-mnist": colored_mnist, "corners": corners, "dsprites": sprites}
)
"""What `attributed` knows, by name; each is called with split, count, seed and options of its own."""


def attributed(name: str, split: str = "train", count: int | None = None, seed: int = 0, **options: Any) -> Attributed:
    """Samples of a source, `count` of them or all it has; `train` and `test` have no sample in common.

    `observed` restricts each source to some combinations: a mask (|Y|,), a pattern's name, or a list of combinations.

    >>> data = attributed("corners", count=4, observed=["horizontal=left,vertical=top"])
    >>> data.x.shape, {data.space.describe(label) for label in data.label.tolist()}
    (torch.Size([4, 2]), {'horizontal=left, vertical=top'})
    >>> attributed("corner")
    Traceback (most recent call last):
    anabranch.errors.UsageError: There is no source of attributes 'corner'; did you mean 'corners'? Known: ...
    """
    if name not in SOURCES:
        raise unknown("source of attributes", name, SOURCES)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if count is not None and count < 1:
        raise UsageError(f"{count} samples were asked for; take 1 or more, or leave the count out.")
    known = list(signature(SOURCES[name]).parameters)[3:]
    for option in options:
        if option not in known:
            raise unknown(f"option of '{name}'", option, known)
    return SOURCES[name](split, count, seed, **options)
