"""Wasserstein coresets: a few points that stand for the data of silos (FedWAD, section 4).

The server holds the coreset C and never sees data. In every round it compares C with some silos by FedWAD and moves it
down the mean of the slopes of W₂(C, ξ) at the ξ that it arrives at. **ξ begins as the coreset itself.** Then the first
answer of a silo already lies on the geodesic from C to its data, and the slope towards it has the direction of the
slope of W₂(C, data) exactly. A ξ that begins as a Gaussian, as the paper has it, comes near that after many rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import UsageError
from anabranch.federation import Federation, Participation, weights
from anabranch.methods.fedwad._messages import Moments
from anabranch.methods.fedwad._server import Watch
from anabranch.methods.fedwad._slopes import CoresetSettings, Slope, exact_slope, federated_slopes
from anabranch.transport import measure


@dataclass(frozen=True)
class Coreset:
    """Points (k, d) with equal `weight` (k,) that stand for data.

    `objective` is, before every round's step, the mean W₂ from the points to the data of the silos asked: exact, since
    each silo measures it. `bytes` counts both ways, by silo.
    """

    points: Tensor
    weight: Tensor
    objective: tuple[float, ...]
    bytes: dict[str, int] = field(default_factory=dict)


def learn_coreset(
    federation: Federation,
    settings: CoresetSettings | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    watch: Watch | None = None,
) -> Coreset:
    """One coreset for all silos: it minimises the λ-weighted mean of W₂ to each silo's data.

    Without a `start` (k, d) it begins as a Gaussian with the mean and the scale of all data.

    >>> from anabranch import Silo
    >>> left = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))
    >>> federation = Federation([Silo("a", torch.cat([left, left + 100])), Silo("b", torch.cat([left, left + 100]))])
    >>> found = learn_coreset(federation, CoresetSettings(size=2, support=2, rounds=100))
    >>> found.points.sort(0).values.round(decimals=2).tolist()
    [[1.5, 1.5], [101.5, 101.5]]
    """
    settings = settings or CoresetSettings()
    before = _open(federation, seed)
    points = _given(start, settings, federation.dimension)
    if points is None:
        points = _scattered(*_pooled(federation), settings.size, seeds.generator(seed, "coreset"))
    objective = []
    for number in range(1, settings.rounds + 1):
        federation.start_round(number)
        asked = dict.fromkeys(_chosen(federation.weight, settings, seed, number), points)
        slopes = federated_slopes(federation, asked, settings, seed)
        points, distance = _moved(points, slopes, federation.weight, settings.rate_at(number))
        objective.append(distance)
        if watch is not None:
            watch(number, settings.rounds)
    return _coreset(points, objective, _spent(federation, before))


def silo_coresets(
    federation: Federation,
    settings: CoresetSettings | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> dict[str, Coreset]:
    """A coreset of its own for every silo, learned with that silo alone; all are asked at once, in every round."""
    settings = settings or CoresetSettings()
    before = _open(federation, seed)
    points = {
        name: _scattered(reply.mean, reply.deviation, settings.size, seeds.generator(seed, "coreset", name))
        for name, reply in federation.everyone(Moments("points")).items()
    }
    objective: dict[str, list[float]] = {name: [] for name in points}
    for number in range(1, settings.rounds + 1):
        federation.start_round(number)
        for name, slope in federated_slopes(federation, points, settings, seed).items():
            points[name], distance = _moved(points[name], {name: slope}, {name: 1.0}, settings.rate_at(number))
            objective[name].append(distance)
        if watch is not None:
            watch(number, settings.rounds)
    spent = _spent(federation, before)
    return {name: _coreset(points[name], objective[name], {name: spent[name]}) for name in points}


def exact_coreset(
    data: Mapping[str, Tensor], settings: CoresetSettings | None = None, seed: int = 0, start: Tensor | None = None
) -> Coreset:
    """The same descent by exact distances to data that lies in one place: what `learn_coreset` is measured against.

    In every round it looks at the same silos as `learn_coreset` does with this seed, and weighs them by size.
    """
    settings = settings or CoresetSettings()
    if not data:
        raise UsageError("No data was given; a coreset stands for one set of points or more.")
    silos = {name: measure(data[name].double()) for name in sorted(data)}
    weight = weights("size", {name: len(part) for name, part in silos.items()})
    whole = torch.cat([part.points for part in silos.values()])
    points = _given(start, settings, whole.shape[1])
    if points is None:
        deviation = whole.std(0, correction=0)
        points = _scattered(whole.mean(0), deviation, settings.size, seeds.generator(seed, "coreset"))
    objective = []
    for number in range(1, settings.rounds + 1):
        slopes = {name: exact_slope(points, silos[name]) for name in _chosen(weight, settings, seed, number)}
        points, distance = _moved(points, slopes, weight, settings.rate_at(number))
        objective.append(distance)
    return _coreset(points, objective, {})


def _open(federation: Federation, seed: int) -> dict[str, int]:
    """Opens the run; gives what each silo had sent and received before it."""
    if federation.participation.rule != "all":
        raise UsageError(
            "The settings of a coreset say how many silos are active; open the federation without a participation."
        )
    before = _spent(federation, {})
    federation.open(f"coreset-{seed}", seed)
    return before


def _spent(federation: Federation, before: Mapping[str, int]) -> dict[str, int]:
    return {name: federation.ledger.bytes(silo=name) - before.get(name, 0) for name in federation.names}


def _chosen(weight: Mapping[str, float], settings: CoresetSettings, seed: int, number: int) -> list[str]:
    """The silos asked in a round."""
    some = Participation("random", min(settings.active, len(weight)))
    return some.choose(weight, seeds.generator(seed, "active", number))


def _moved(
    points: Tensor, slopes: Mapping[str, Slope], weight: Mapping[str, float], rate: float
) -> tuple[Tensor, float]:
    """The points a step down the mean slope, and the mean distance before it.

    A step is a share of the distance, so that it fits data of any scale: along a slope of full steepness the points
    move, in the quadratic mean, by `rate` times the distance.
    """
    share = torch.tensor([weight[name] for name in slopes], dtype=torch.float64)
    share = share / share.sum()
    distance = float(share @ torch.tensor([slope.distance for slope in slopes.values()], dtype=torch.float64))
    gradient = torch.einsum("i,ikd->kd", share, torch.stack([slope.gradient for slope in slopes.values()]))
    return points - rate * distance * len(points) * gradient, distance


def _given(start: Tensor | None, settings: CoresetSettings, dimension: int) -> Tensor | None:
    """The start in float64, once it is seen to be one."""
    if start is not None and start.shape != (settings.size, dimension):
        raise UsageError(
            f"A start of shape {tuple(start.shape)} was given; a coreset of {settings.size} points in {dimension}"
            f" dimensions starts at points of shape {(settings.size, dimension)}."
        )
    return None if start is None else measure(start.double()).points


def _pooled(federation: Federation) -> tuple[Tensor, Tensor]:
    """Mean and deviation (d,) of all silos' data together."""
    replies = federation.everyone(Moments("points"))
    share = torch.tensor([federation.weight[name] for name in replies], dtype=torch.float64)
    means = torch.stack([reply.mean.double() for reply in replies.values()])
    squares = torch.stack([reply.deviation.double() ** 2 for reply in replies.values()]) + means**2
    mean = share @ means
    return mean, (share @ squares - mean**2).clamp_min(0).sqrt()


def _scattered(mean: Tensor, deviation: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Gaussian points (k, d) with this mean and scale."""
    noise = torch.randn(size, len(mean), generator=generator, dtype=torch.float64)
    return mean.double() + deviation.double() * noise


def _coreset(points: Tensor, objective: list[float], spent: dict[str, int]) -> Coreset:
    return Coreset(points, measure(points).weight, tuple(objective), spent)
