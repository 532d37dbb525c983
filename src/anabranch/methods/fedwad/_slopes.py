"""How steeply the distance from a coreset to a silo's data falls, and what can be chosen about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import UsageError, unknown
from anabranch.federation import Federation
from anabranch.methods.fedwad import _silo
from anabranch.methods.fedwad._comparison import Comparison, stacked
from anabranch.methods.fedwad._messages import Settle
from anabranch.methods.fedwad._refine import refine
from anabranch.methods.fedwad._settings import PRECISIONS, WadSettings
from anabranch.transport import Measure, measure, wasserstein

SILO_HALF = _silo  # importing the server half registers the silo half
STARTS = ("coreset", "gaussian")


@dataclass(frozen=True)
class CoresetSettings:
    """A coreset of `size` points, learned for `rounds` in which `active` silos are asked, all where there are fewer.

    Each is compared by a ξ of `support` atoms, as many for every point of the coreset, over `inner_rounds`; ξ starts as
    the "coreset" or as a "gaussian". The points move by the share `rate` of the distance at most, which falls to
    nothing by the last round as half a cosine does. The paper asks for 1 000 rounds, 10 silos, a ξ of 10 or 100 atoms
    that starts as a Gaussian, and 20 inner rounds.
    """

    size: int = 10
    rounds: int = 1000
    active: int = 10
    support: int = 10
    inner_rounds: int = 1
    start: str = "coreset"
    rate: float = 0.1

    def __post_init__(self) -> None:
        for name in ("size", "rounds", "active", "support", "inner_rounds"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; give 1 or more.")
        if self.support % self.size:
            raise UsageError(
                f"A measure of {self.support} atoms was asked for beside a coreset of {self.size} points; give a"
                f" multiple of {self.size}, so that each point is stood for by as many atoms."
            )
        if self.start not in STARTS:
            raise unknown("start", self.start, STARTS)
        if not 0 < self.rate <= 1:
            raise UsageError(f"A rate of {self.rate} was given; it is a share of the distance, in (0, 1].")

    @property
    def comparison(self) -> WadSettings:
        """How the coreset is compared with a silo. One round more than are made: the last would measure how ξ moved."""
        return WadSettings(support=self.support, rounds=self.inner_rounds + 1, bounds=False)

    def rate_at(self, number: int) -> float:
        """The rate of round 1, 2, …"""
        return self.rate * (1 + math.cos(math.pi * (number - 1) / self.rounds)) / 2


@dataclass(frozen=True)
class Slope:
    """W₂ from a coreset to one silo's data, and its gradient (k, d) in the coreset's points."""

    distance: float
    gradient: Tensor


def exact_slope(points: Tensor, data: Measure) -> Slope:
    """W₂ from a coreset to a measure in the same place, and its slope, by the envelope theorem."""
    moving = points.detach().double().requires_grad_()
    distance = wasserstein(measure(moving), data)
    (gradient,) = torch.autograd.grad(distance, moving)
    return Slope(float(distance.detach()), gradient)


def federated_slopes(
    federation: Federation, coresets: Mapping[str, Tensor], settings: CoresetSettings, seed: int = 0
) -> dict[str, Slope]:
    """From each silo's coreset the distance to its data, as the silo measures it, and the slope towards the last ξ.

    The slope is that of W₂(C, ξ). Where ξ has few atoms and lies near, it is steeper than that of W₂(C, data), since
    such a ξ has lost the scatter of the data about its means: its direction is what counts.
    """
    copies = settings.support // settings.size
    comparisons = []
    for name, points in coresets.items():
        side = measure(points.repeat_interleave(copies, 0))
        generator = seeds.generator(seed, "xi", federation.round, name)
        noise = torch.randn(side.points.shape, generator=generator, dtype=torch.float64)
        comparisons.append(Comparison(name, side, side if settings.start == "coreset" else measure(noise)))
    for number in range(1, settings.inner_rounds + 1):
        refine(federation, comparisons, settings.comparison, seeds.derive(seed, federation.round), number)
    dtype = PRECISIONS[settings.comparison.precision]
    replies = federation.everyone(
        {name: Settle(*stacked([measure(points)], dtype), "points", 2.0, 0) for name, points in coresets.items()}
    )
    return {
        name: Slope(float(replies[name].distance[0]), exact_slope(coresets[name], comparison.xi).gradient)
        for name, comparison in zip(coresets, comparisons, strict=True)
    }
