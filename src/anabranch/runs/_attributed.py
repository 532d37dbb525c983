"""Silos whose samples have attributes: from files, or divided from one source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from anabranch import seeds
from anabranch.data import Partition, by_component, check_points
from anabranch.data.attributes import (
    DIVISIONS,
    SOURCES,
    Attributed,
    AttributeSpace,
    attributed,
    by_combinations,
    divide,
    keep_observed,
    load_attributed,
    load_silos,
    union,
)
from anabranch.errors import UsageError, unknown
from anabranch.runs._sections import DataSettings

WAYS = (*DIVISIONS, "component", "combinations")


def attributed_of(data: DataSettings, files: Mapping[str, str]) -> dict[str, Attributed]:
    """What each silo holds, all in one attribute space: a file of its own, by silo, or its part of one target."""
    if not data.attributed:
        raise UsageError(
            "This method composes attributes, and data names none; name arrays of .npz files in data.attributes, or"
            f" take a source as data.target: {', '.join(SOURCES)}."
        )
    if files:
        return {name: keep_observed(each, data.observed) for name, each in _loaded(data, files).items()}
    whole = _whole(data)
    check_points(whole.x, "The data")
    return {name: whole[index] for name, index in _partition(data, whole).items()}


def spelling_hints(space: AttributeSpace) -> list[str]:
    """A sentence about each group of outcomes that somebody may have meant to be one.

    >>> spelling_hints(AttributeSpace.of({"color": ["RED", "blue", "red"], "size": ["l", "s"]}))
    ["color has 'RED' and 'red', which differ only in case; they count as different outcomes."]
    """
    found = []
    for name, outcomes in space.attributes:
        alike: dict[str, list[str]] = {}
        for outcome in outcomes:
            alike.setdefault(outcome.casefold(), []).append(f"'{outcome}'")
        for *others, last in (group for group in alike.values() if len(group) > 1):
            what = f"{', '.join(others)} and {last}"
            found.append(f"{name} has {what}, which differ only in case; they count as different outcomes.")
    return found


def pooled(parts: Mapping[str, Attributed]) -> Attributed:
    """Everything in one place."""
    first = next(iter(parts.values()))
    x, label = (torch.cat([getattr(part, name) for part in parts.values()]) for name in ("x", "label"))
    return Attributed(x, label, first.space, first.shape)


def _loaded(data: DataSettings, files: Mapping[str, str]) -> dict[str, Attributed]:
    if data.space is None:
        return load_silos(files, data.attributes)
    return {silo: load_attributed(path, data.space.names, data.space) for silo, path in files.items()}


def _whole(data: DataSettings) -> Attributed:
    """The data before it is divided. Of a source, as many samples as are asked for, or all."""
    if data.source:
        count = data.points or None
        return attributed(data.target, count=count, seed=data.seed, observed=_observed(data))
    if not data.target.endswith(".npz"):
        raise UsageError(f"'{data.target}' has no attributes; they are arrays of .npz files beside x.")
    loaded = load_attributed(Path(data.target), data.attributes or tuple(data.outcomes), data.space)
    space = data.space or union({"all": loaded.space})  # which refuses an attribute with one outcome
    whole = Attributed(loaded.x, loaded.space.recode(loaded.label, space), space, loaded.shape)
    return keep_observed(whole, _observed(data))


def _observed(data: DataSettings) -> str | list[str]:
    """What the data has: where silos are given combinations, these and no others, unless a pattern says so."""
    if data.observed == "all" and data.combinations:
        return [each for held in data.combinations.values() for each in held]
    return data.observed


def _partition(data: DataSettings, whole: Attributed) -> Partition:
    generator = seeds.generator(data.seed, "data")
    if data.partition == "combinations":
        return by_combinations(whole.label, whole.space, data.combinations, generator)
    if data.partition == "component":
        groups = [list(group) for group in data.groups] or [[label] for label in sorted(set(whole.label.tolist()))]
        return by_component(whole.label, groups)
    if data.partition.partition(":")[0] not in DIVISIONS:
        raise unknown("partition of combinations", data.partition, WAYS)
    return divide(whole, data.partition, data.silos, generator, data.alpha)
