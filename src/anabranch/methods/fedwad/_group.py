"""A data set that many silos hold together, as one side of a distance.

The mass of ξ has to be divided between the silos before each can plan its own part. Which division is best follows from
prices on the atoms of ξ, as in any optimal plan: every silo says how much of its mass would go to each atom at given
prices, and the server raises the prices of atoms that too much would go to. Any division gives a plan, so the value
stays an upper bound; the prices only make it a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.federation import Federation, Message
from anabranch.methods.fedwad._messages import Demand, Interpolate, Settle
from anabranch.methods.fedwad._settings import PRECISIONS, WadSettings
from anabranch.transport import Measure, barycentres, crossing, wasserstein

SOFTNESS = 0.02  # of the squared scale of the data: smooths the silos' choices, so that prices can be found by descent
STEPS = 30  # exchanges at most to find the prices of a round; they begin with those of the round before
SMALLEST_PART = 4  # points behind an atom, as silos ask for by default


@dataclass
class Group:
    """Silos that hold one data set together, each with its share λ of the mass."""

    federation: Federation
    names: Sequence[str]
    settings: WadSettings
    scale: float = 1.0
    prices: Tensor | None = None

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise UsageError("A silo is named twice in a group; each holds its data once.")
        whole = sum(self.federation.sizes[name] for name in self.names)
        self.share = torch.tensor([self.federation.sizes[name] / whole for name in self.names], dtype=torch.float64)

    def pool(self, moments: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Mean and scale of the whole data set, from those of the silos; the softness of choices follows from them."""
        means, deviations = (torch.stack(part).double() for part in zip(*moments, strict=True))
        mean = self.share @ means
        deviation = (self.share @ (deviations.square() + (means - mean).square())).sqrt()
        self.scale = float(deviation.norm())
        return mean, deviation

    def towards(self, xi: Measure, t: float) -> Measure:
        """A measure between the data and ξ: at each atom the mean of what the silos answer there, by their mass."""
        view, power, mass = self.settings.view, self.settings.power, self._divided(xi)
        points = torch.zeros_like(xi.points)
        replies = self._everyone(xi, mass, lambda x, w: Interpolate(x, w, view, power, False, 0, False, t))
        for row, name in zip(mass, self.names, strict=True):
            points[row > 0] += row[row > 0, None] * replies[name].points[0].double()
        weight = mass.sum(0)
        return Measure(points[weight > 0] / weight[weight > 0, None], weight[weight > 0])

    def settle(self, xi: Measure) -> tuple[float, Measure]:
        """W_p from the data to ξ by the best division found, and ξ with the weights that this division gives it."""
        view, power, mass = self.settings.view, self.settings.power, self._divided(xi)
        replies = self._everyone(xi, mass, lambda x, w: Settle(x, w, view, power, 0))
        parts = torch.tensor([float(replies[name].distance[0]) ** power for name in self.names], dtype=torch.float64)
        weight = mass.sum(0)
        return float((self.share @ parts) ** (1 / power)), Measure(xi.points[weight > 0], weight[weight > 0])

    def _everyone(self, xi: Measure, mass: Tensor, question: Callable[[Tensor, Tensor], Message]) -> dict[str, Any]:
        """Asks each silo about the atoms that it takes mass from, weighted by that mass."""
        dtype = PRECISIONS[self.settings.precision]
        questions = {}
        for row, name in zip(mass, self.names, strict=True):
            points, weight = xi.points[row > 0], row[row > 0] / row.sum()
            questions[name] = question(points[None].to(dtype), weight[None].to(dtype))
        return self.federation.everyone(questions)

    def _divided(self, xi: Measure) -> Tensor:
        """(silos, S): how much of each atom's mass every silo takes; columns sum to about the weights of ξ."""
        if len(self.names) == 1:
            return xi.weight[None]
        from scipy.optimize import minimize

        usage: Tensor = torch.zeros(0)

        def negative(prices: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            nonlocal usage
            value, usage = self._demand(xi, torch.from_numpy(prices))
            slope = xi.weight - self.share @ usage
            return -float(value + xi.weight @ torch.from_numpy(prices)), -slope.numpy()

        start = self.prices if self.prices is not None else torch.zeros(len(xi), dtype=torch.float64)
        found = minimize(negative, start.numpy(), jac=True, method="L-BFGS-B", options={"maxfun": STEPS, "gtol": 1e-4})
        self.prices = torch.from_numpy(found.x)
        _, usage = self._demand(xi, self.prices)
        sizes = torch.tensor([self.federation.sizes[name] for name in self.names])
        mass = balanced(self.share[:, None] * usage, self.share, xi.weight, (SMALLEST_PART + 0.01) / sizes)
        if bool((mass.sum(1) == 0).any()):
            raise UsageError(f"A silo of the group has too few points for {len(xi)} atoms; ask for a smaller support.")
        return mass * (self.share / mass.sum(1))[:, None]

    def _demand(self, xi: Measure, prices: Tensor) -> tuple[Tensor, Tensor]:
        """The dual's part that the silos know, and (silos, S) what share of its mass each would send to every atom."""
        epsilon = SOFTNESS * self.scale**self.settings.power
        question = Demand(xi.points, xi.weight, prices, self.settings.view, self.settings.power, epsilon)
        replies = self.federation.everyone(dict.fromkeys(self.names, question))
        values = torch.tensor([replies[name].value for name in self.names], dtype=torch.float64)
        return self.share @ values, torch.stack([replies[name].usage.double() for name in self.names])


@dataclass
class Held:
    """A measure that the server holds, asked in the same words."""

    measure: Measure
    power: float

    def towards(self, xi: Measure, t: float) -> Measure:
        """A measure between it and ξ, with the atoms of ξ."""
        plan = crossing(xi, self.measure, self.power)
        return Measure(t * xi.points + (1 - t) * barycentres(plan, xi, self.measure.double()), xi.weight)

    def settle(self, xi: Measure) -> tuple[float, Measure]:
        """W_p from it to ξ."""
        return float(wasserstein(self.measure, xi, self.power)), xi


def balanced(mass: Tensor, rows: Tensor, columns: Tensor, least: Tensor, rounds: int = 200) -> Tensor:
    """The mass (n, S) scaled until its columns sum to about `columns` and its rows to `rows` exactly.

    Entries below the share `least` (n,) of their row are left out: too few points would stand behind them.
    """
    for _ in range(3):  # leaving some out makes others grow, or shrink
        floor = torch.minimum(rows * least, mass.max(1).values)
        mass = torch.where(mass >= floor[:, None], mass, 0.0)
        for _ in range(rounds):
            mass = mass * (columns / mass.sum(0).clamp_min(1e-300))
            mass = mass * (rows / mass.sum(1))[:, None]
    return torch.where(mass >= (rows * least)[:, None], mass, 0.0)
