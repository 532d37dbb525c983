"""Who holds which combination: dividing samples with attributes among silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anabranch.data._partition import Partition, dirichlet, iid
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._observed import combination_label, observed_mask
from anabranch.data.attributes._space import AttributeSpace
from anabranch.data.attributes._words import quoted
from anabranch.errors import DataError, UsageError, unknown

DIVISIONS = ("dirichlet", "iid")
"""The partitions by name that `divide` knows."""


def divide(data: Attributed, name: str, silos: int, generator: torch.Generator, alpha: float = 0.1) -> Partition:
    """`iid`: dealt at random; `dirichlet`: each combination spread over the silos by p ~ Dirichlet(α, …, α).

    `dirichlet:digit` spreads the outcomes of one attribute instead: with a small α a silo meets few of them, each in
    all its combinations, and what others have met it cannot compose alone.

    >>> from anabranch.data.attributes import attributed
    >>> parts = divide(attributed("corners", count=40), "iid", 2, torch.Generator().manual_seed(0))
    >>> {silo: len(index) for silo, index in parts.items()}
    {'silo-1': 20, 'silo-2': 20}
    """
    if name == "iid":
        return iid(len(data), silos, generator)
    if name == "dirichlet":
        return dirichlet(data.label, silos, alpha, generator)
    kind, separator, attribute = name.partition(":")
    if kind == "dirichlet" and separator:
        if attribute not in data.space.names:
            raise unknown("attribute", attribute, data.space.names)
        return dirichlet(data.codes[:, data.space.names.index(attribute)], silos, alpha, generator)
    raise unknown("partition of combinations", name, [*DIVISIONS, *(f"dirichlet:{each}" for each in data.space.names)])


def by_combinations(
    label: Tensor, space: AttributeSpace, given: Mapping[str, Sequence[str | int]], generator: torch.Generator
) -> Partition:
    """Each silo holds the combinations given to it, in words or as labels.

    A combination given to several silos is dealt among them at random, as evenly as possible; who gets one more is
    drawn too. Every combination of the data must be given to a silo (or be left out first, with `keep_observed`).

    >>> space = AttributeSpace.of({"a": "12", "b": "12"})
    >>> label = torch.tensor([0, 1, 3, 1])
    >>> by_combinations(label, space, {"n": ["a=1,b=1"], "s": [1, 3]}, torch.Generator().manual_seed(0))
    {'n': tensor([0]), 's': tensor([1, 2, 3])}
    """
    if not given:
        raise UsageError("No silo was given any combination; there must be at least one silo.")
    holders: dict[int, list[str]] = {}
    for silo, combinations in given.items():
        if not combinations:
            raise UsageError(f"Silo '{silo}' was given no combinations; give it one or leave it out.")
        for number in sorted({combination_label(space, each) for each in combinations}):
            holders.setdefault(number, []).append(silo)
    homeless = sorted(set(label.tolist()) - set(holders))
    if homeless:
        raise UsageError(
            f"{quoted([space.describe(number) for number in homeless], 3)} of the data was given to no silo; give it to"
            " one, or leave its samples out."
        )
    parts: dict[str, list[Tensor]] = {silo: [] for silo in given}
    for number, silos in sorted(holders.items()):
        members = (label.cpu() == number).nonzero()[:, 0]
        if len(members) < len(silos):
            raise DataError(
                f"The data has {len(members)} samples of '{space.describe(number)}', too few for"
                f" {quoted(silos)}; take more data, or give it to fewer silos."
            )
        shuffled = members[torch.randperm(len(members), generator=generator)]
        turns = torch.randperm(len(silos), generator=generator).tolist()
        for turn, share in zip(turns, shuffled.tensor_split(len(silos)), strict=True):
            parts[silos[turn]].append(share)
    return {silo: torch.cat(shares).sort().values for silo, shares in parts.items()}


def keep_observed(data: Attributed, observed: Tensor | str | Sequence[str | int]) -> Attributed:
    """The samples of some combinations: a mask (|Y|,), labels, combinations in words, or a pattern's name."""
    if isinstance(observed, Tensor) and observed.dtype != torch.bool:
        observed = [int(number) for number in observed.tolist()]
    return data[observed_mask(data.space, observed)[data.label]]
