"""Partitioners: who holds which sample.

Each returns `{silo: indices}` with sorted int64 indices that are disjoint, cover everything, and leave no
silo empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy
import torch
from torch import Tensor

from anabranch.data._table import MISSING
from anabranch.errors import DataError, UsageError

Partition = dict[str, Tensor]

_TRIES = 100


def by_component(labels: Tensor, groups: Sequence[Sequence[int]]) -> Partition:
    """Silo i holds the samples whose label is in groups[i]; every label belongs to exactly one group.

    >>> by_component(torch.tensor([0, 1, 2, 0]), [[0], [1, 2]])
    {'silo-1': tensor([0, 3]), 'silo-2': tensor([1, 2])}
    """
    labels = _labels(labels)
    listed = [label for group in groups for label in group]
    twice = sorted({label for label in listed if listed.count(label) > 1})
    if twice:
        raise UsageError(f"Label {twice[0]} is in more than one place of the groups; put each label in one group.")
    homeless = sorted(set(torch.unique(labels).tolist()) - set(listed))
    if homeless:
        raise UsageError(f"Label {homeless[0]} is in no group; put every label of the data in one group.")
    return _named([torch.isin(labels, torch.tensor(list(group), dtype=torch.long)).nonzero()[:, 0] for group in groups])


def by_shards(labels: Tensor, silos: int, shards_per_silo: int, generator: torch.Generator) -> Partition:
    """Sort by label, cut into silos · shards_per_silo equal shards, deal them to the silos at random.

    A silo sees few labels: one for each shard, plus one for each label boundary inside a shard (McMahan et
    al. 2017, section 3). Samples of one label are shuffled first, so that their order in the data decides
    nothing.
    """
    labels = _labels(labels)
    _check_silos(silos, len(labels))
    if shards_per_silo < 1 or silos * shards_per_silo > len(labels):
        raise UsageError(
            f"{silos} silos with {shards_per_silo} shards each cannot be cut from {len(labels)} samples;"
            " every silo needs a shard and every shard a sample."
        )
    shuffled = _randperm(len(labels), generator)
    order = shuffled[labels[shuffled].argsort(stable=True)]
    shards = order.tensor_split(silos * shards_per_silo)
    dealt = _randperm(len(shards), generator).reshape(silos, shards_per_silo).tolist()
    return _named([torch.cat([shards[shard] for shard in hand]) for hand in dealt])


def dirichlet(labels: Tensor, silos: int, alpha: float, generator: torch.Generator, smallest: int = 2) -> Partition:
    """Each label is spread over the silos in proportions p ~ Dirichlet(α, …, α).

    Small α skews the silos, large α makes them alike. Drawn anew until every silo holds at
    least `smallest` samples (Hsu et al. 2019; Li et al. 2022).
    """
    labels = _labels(labels)
    _check_silos(silos, len(labels), max(smallest, 1))
    if not 0 < alpha < float("inf"):
        raise UsageError(f"alpha = {alpha} was given; the concentration of a Dirichlet must be positive and finite.")
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    random = numpy.random.default_rng(seed)
    classes = [(labels == label).nonzero()[:, 0].numpy() for label in torch.unique(labels)]
    for _ in range(_TRIES):
        parts: list[list[numpy.ndarray]] = [[] for _ in range(silos)]
        for members in classes:
            cuts = numpy.rint(_proportions(random, silos, alpha).cumsum()[:-1] * len(members)).astype(int)
            for part, share in zip(parts, numpy.split(random.permutation(members), cuts), strict=True):
                part.append(share)
        drawn = [torch.from_numpy(numpy.concatenate(part)) for part in parts]
        if min(map(len, drawn)) >= max(smallest, 1):
            return _named(drawn)
    raise UsageError(
        f"In {_TRIES} draws with alpha = {alpha} some of the {silos} silos always held fewer than {smallest}"
        " samples; take a larger alpha, fewer silos or more data."
    )


def iid(count: int, silos: int, generator: torch.Generator) -> Partition:
    """Samples 0 … count − 1 dealt at random, as evenly as possible."""
    _check_silos(silos, count)
    return _named(list(_randperm(count, generator).tensor_split(silos)))


def by_attribute(values: Sequence[str] | Tensor) -> Partition:
    """One silo for each distinct value, named after it.

    >>> by_attribute(["Bonn", "Cork", "Bonn"])
    {'Bonn': tensor([0, 2]), 'Cork': tensor([1])}
    """
    texts = [str(value).strip() for value in (values.tolist() if isinstance(values, Tensor) else values)]
    if not texts:
        raise DataError("There are no values to partition by; at least one sample is needed.")
    members: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        if text in MISSING:
            raise DataError(f"Sample {index} has no value of the attribute; every sample needs a silo.")
        members.setdefault(text, []).append(index)
    return {text: torch.tensor(members[text]) for text in sorted(members)}


PARTITIONERS: Mapping[str, Callable[..., Partition]] = MappingProxyType(
    {
        "attribute": by_attribute,
        "component": by_component,
        "dirichlet": dirichlet,
        "iid": iid,
        "shards": by_shards,
    }
)
"""The partitioners by name."""


def _proportions(random: numpy.random.Generator, silos: int, alpha: float) -> numpy.ndarray:
    """p ~ Dirichlet(α, …, α), through logarithms: Gamma(α) = Gamma(α + 1)·U^(1/α) underflows for small α."""
    logarithm = numpy.log(random.standard_gamma(alpha + 1, silos)) + numpy.log1p(-random.random(silos)) / alpha
    weight = numpy.exp(logarithm - logarithm.max())
    proportions: numpy.ndarray = weight / weight.sum()
    return proportions


def _labels(labels: Tensor) -> Tensor:
    if labels.ndim != 1 or labels.is_floating_point() or len(labels) == 0:
        raise DataError(
            f"Labels of shape {tuple(labels.shape)} and type {labels.dtype} were given; a partition needs one"
            " whole number a sample, and at least one sample."
        )
    return labels.cpu().long()


def _randperm(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device=generator.device).cpu()


def _check_silos(silos: int, count: int, smallest: int = 1) -> None:
    if silos < 1:
        raise UsageError(f"{silos} silos were asked for; there must be at least one.")
    if count < silos * smallest:
        raise UsageError(
            f"{count} samples cannot fill {silos} silos with at least {smallest} each; take fewer silos or more data."
        )


def _named(parts: Sequence[Tensor]) -> Partition:
    """The parts as silo-1, silo-2, …, padded with zeros so that sorting the names keeps the order."""
    if not parts:
        raise UsageError("No groups were given; there must be at least one silo.")
    width = len(str(len(parts)))
    named = {f"silo-{number:0{width}d}": part.sort().values for number, part in enumerate(parts, start=1)}
    empty = [name for name, part in named.items() if len(part) == 0]
    if empty:
        raise DataError(f"{empty[0]} would hold no samples; leave it out or give it labels that the data has.")
    return named
