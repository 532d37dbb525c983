"""The end of the server half: the value, what it is likely to be, and what it cannot be below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.federation import Federation
from anabranch.methods.fedwad._bias import alignment, coarse, likeness, scatter_factor
from anabranch.methods.fedwad._comparison import Comparison, ask, key, size, stacked
from anabranch.methods.fedwad._messages import Profile, Settle
from anabranch.methods.fedwad._settings import PRECISIONS, WadSettings
from anabranch.transport import Measure, crossing, crossing_distance, interpolate, lower_bound, profile, spread


@dataclass(frozen=True)
class Bounds:
    """What is known of W_p: at most `value`, probably `debiased`, at least `lower`."""

    value: float
    debiased: float | None
    lower: float | None


def bounds_of(
    federation: Federation,
    comparisons: Sequence[Comparison],
    moments: Mapping[str | int, tuple[Tensor, Tensor]],
    settings: WadSettings,
) -> list[Bounds]:
    """Settles every comparison at its last ξ; asks for no more than the settings' bounds need."""
    if not comparisons:
        return []
    lower = _lower(federation, comparisons, moments, settings) if settings.bounds else [None] * len(comparisons)
    result = []
    for sides, least in zip(_settle(federation, comparisons, settings), lower, strict=True):
        value = sum(side.distance for side in sides)
        guess = _guess(*sides)
        if settings.bounds and settings.exact:
            guess = value
        result.append(Bounds(value, None if guess is None else min(max(guess, least or 0.0), value), least))
    return result


@dataclass(frozen=True)
class _Side:
    """What one side says of the last ξ."""

    distance: float
    scatter: float = 0.0
    factor: Tensor | None = None
    alignment: float = 0.0


def _guess(first: _Side, second: _Side) -> float | None:
    """The distance without what S atoms add to it; None where the sides did not say how their points scatter."""
    if first.factor is None or second.factor is None:
        return None
    parts = [(side.distance**2, side.scatter) for side in (first, second)]
    saved = 2 * math.sqrt(first.alignment * second.alignment) * likeness(first.factor, second.factor)
    return math.sqrt(max(coarse(parts) + first.scatter + second.scatter - saved, 0.0))


def _settle(
    federation: Federation, comparisons: Sequence[Comparison], settings: WadSettings
) -> list[tuple[_Side, _Side]]:
    """What both sides of every comparison say of their last ξ."""
    dtype = PRECISIONS[settings.precision]
    told = settings.bounds and settings.power == 2 and not settings.exact
    rounds = max(len(one.rounds) for one in comparisons) if told else 0
    found = []
    for group in [[one] for one in comparisons] if settings.exact else [list(comparisons)]:

        def question(of: list[Comparison]) -> Settle:
            points, weight = stacked([one.xi for one in of], dtype)
            return Settle(points, weight, settings.view, settings.power, rounds, settings.directions)

        replies = ask(federation, group, question)
        for number, comparison in enumerate(group):
            points, weight = stacked([comparison.xi], dtype)  # as the silos received it
            xi = Measure(points[0].double(), weight[0].double() / weight[0].double().sum())
            sides = []
            for side, who in enumerate(comparison.sides):
                if isinstance(who, Measure):
                    sides.append(_held(who.double(), xi, settings, rounds))
                else:
                    reply, place = replies[number, side]
                    scatter = 0.0 if reply.scatter is None else float(reply.scatter[place])
                    sides.append(_Side(float(reply.distance[place]), scatter, reply.factor, reply.alignment or 0.0))
            found.append((sides[0], sides[1]))
    return found


def _held(data: Measure, xi: Measure, settings: WadSettings, rounds: int) -> _Side:
    """The same of a measure that the server holds."""
    plan = crossing(data, xi, settings.power).reversed()
    distance = float(crossing_distance(xi, data, plan, settings.power))
    if not rounds:
        return _Side(distance)
    generator = torch.Generator().manual_seed(0)
    factor = scatter_factor(plan, xi, data, settings.directions, generator)
    return _Side(distance, spread(plan, xi, data), factor, alignment(data, len(xi), rounds, generator))


def _lower(
    federation: Federation,
    comparisons: Sequence[Comparison],
    moments: Mapping[str | int, tuple[Tensor, Tensor]],
    settings: WadSettings,
) -> list[float | None]:
    """What no plan can cost less than, by how both sides lie along the directions in which ξ saw them differ."""
    directions = [_directions(comparison, moments, settings) for comparison in comparisons]
    smallest = min(size(federation, side) for comparison in comparisons for side in comparison.sides)
    bins = max(1, min(settings.bins, smallest // 8))  # twice as coarse as silos insist on by default
    index = {id(comparison): number for number, comparison in enumerate(comparisons)}

    def question(of: list[Comparison]) -> Profile:
        chosen = torch.stack([directions[index[id(comparison)]] for comparison in of])
        return Profile(chosen.to(PRECISIONS[settings.precision]), settings.view, bins)

    replies = ask(federation, comparisons, question)
    found: list[float | None] = []
    for number, comparison in enumerate(comparisons):
        asked = directions[number].to(PRECISIONS[settings.precision])
        portions = []
        for side, who in enumerate(comparison.sides):
            if isinstance(who, Measure):
                portions.append(profile(who, asked, bins))
            else:
                reply, place = replies[number, side]
                portions.append(reply.portions[place].double())
        means = [moments[key(side)][0].double() for side in comparison.sides]
        found.append(lower_bound(asked, (portions[0], portions[1]), (means[0], means[1]), settings.power))
    return found


def _directions(
    comparison: Comparison, moments: Mapping[str | int, tuple[Tensor, Tensor]], settings: WadSettings
) -> Tensor:
    """Orthonormal directions (r, d): that of the means, then those in which the two ends of ξ differ, then its own."""
    first, second = (moments[key(side)][0].double() for side in comparison.sides)
    xi = comparison.xi.double()
    rows = [(second - first)[None], xi.points - xi.points.mean(0)]
    if comparison.ends is not None:
        ends = [end.double() for end in comparison.ends]
        plan = interpolate(ends[0], ends[1], 0.5, settings.power).crossing
        apart = ends[1].points[plan.target] - ends[0].points[plan.source]
        rows.insert(1, apart - apart.mean(0))
    count = min(settings.directions, xi.points.shape[1])
    basis = torch.zeros(0, xi.points.shape[1], dtype=torch.float64)
    for part in (*rows, torch.eye(xi.points.shape[1], dtype=torch.float64)[:count]):
        basis = _extended(basis, part, count)
    return basis


def _extended(basis: Tensor, rows: Tensor, count: int) -> Tensor:
    """The basis with the leading directions of what the rows add to it, up to `count` in all."""
    if len(basis) >= count:
        return basis
    for _ in range(2):  # twice, or rounding would leave a part of the old directions
        rows = rows - (rows @ basis.T) @ basis
    _, strength, directions = torch.linalg.svd(rows, full_matrices=False)
    real = strength > 1e-9 * max(float(strength.max()), 1e-300)
    return torch.cat([basis, directions[real][: count - len(basis)]])
