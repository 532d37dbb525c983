"""The silo half: it sees its own data and ξ, never another silo."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import Silo, answers
from anabranch.methods.fedwad._bias import alignment, scatter_factor
from anabranch.methods.fedwad._messages import (
    Demand,
    DemandReply,
    Interpolate,
    InterpolateReply,
    Moments,
    MomentsReply,
    Profile,
    ProfileReply,
    Settle,
    SettleReply,
)
from anabranch.methods.fedwad._places import draw_t
from anabranch.methods.fedwad._views import plan_work, view_of
from anabranch.transport import Measure, crossing, crossing_distance, interpolate, profile, spread, wasserstein


@answers(Moments)
def moments(silo: Silo, question: Moments) -> MomentsReply:
    """Mean and scale of the data."""
    silo.rests_on(len(silo))
    points = view_of(silo, question.view).points
    return MomentsReply(points.mean(0), points.std(0, correction=0))


@answers(Interpolate)
def between(silo: Silo, question: Interpolate) -> InterpolateReply:
    """For each ξ a measure between it and the data, in the precision of ξ."""
    data = view_of(silo, question.view)
    measures = _measures(silo, question.points, question.weight, data)
    # A light atom stands for few points however many atoms there are.
    silo.divides(len(data) if question.exact else math.ceil(1 / float(question.weight.min()) - 1e-3))
    if question.exact and len(measures) > 1:
        raise MessageError("Exact interpolation answers one measure at a time; more do not have one size.")
    generator = silo.private_generator("t")
    prices: dict[int, Tensor] = silo.cache.setdefault("fedwad/prices", {})
    found, distances = [], []
    for place, xi in enumerate(measures):
        t = draw_t(generator, question.exact or 4 * len(xi) > len(data)) if question.t is None else question.t
        start = prices.get(place)
        start = start if start is not None and len(start) == len(data) else None
        way = interpolate(data, xi, t, question.power, question.exact, question.most, start)
        if way.crossing.height is not None:
            prices[place] = way.crossing.height
        found.append(way.measure)
        if question.reveal:
            distances.append(way.distance)
    dtype = question.points.dtype
    return InterpolateReply(
        torch.stack([m.points for m in found]).to(dtype),
        torch.stack([m.weight for m in found]).to(dtype),
        torch.stack(distances) if question.reveal else None,
        torch.stack([wasserstein(data, m, question.power) for m in found]) if question.reveal else None,
    )


@answers(Demand)
def demand(silo: Silo, question: Demand) -> DemandReply:
    """How much of the data would go to each atom."""
    data = view_of(silo, question.view)
    xi = _measures(silo, question.points[None], question.weight[None], data)[0]
    if question.price.shape != xi.weight.shape or not (question.power >= 1 and question.softness > 0):
        raise MessageError("Prices arrived that do not fit the measure, or a power below 1, or no softness.")
    silo.rests_on(len(silo))
    cost = torch.cdist(data.points, xi.points, compute_mode="use_mm_for_euclid_dist") ** question.power
    score = (question.price.double() - cost) / question.softness + xi.weight.log()
    value = -question.softness * torch.logsumexp(score, 1).mean()
    return DemandReply(torch.softmax(score, 1).mean(0), float(value))


@answers(Settle)
def settle(silo: Silo, question: Settle) -> SettleReply:
    """How far the data is from each ξ, and how its points scatter behind the atoms."""
    data = view_of(silo, question.view)
    measures = _measures(silo, question.points, question.weight, data)
    plans = [crossing(data, xi, question.power).reversed() for xi in measures]
    pairs = list(zip(measures, plans, strict=True))
    distance = torch.stack([crossing_distance(xi, data, plan, question.power) for xi, plan in pairs])
    if not question.rounds:
        return SettleReply(distance)
    support = question.points.shape[1]
    silo.divides(support)
    silo.affords(f"{question.rounds} rounds with itself", work=8 * question.rounds * plan_work(len(data), support, 1))
    key = f"fedwad/scatter/{question.view}/{support}/{question.rounds}/{question.count}"
    if key not in silo.cache:
        generator = silo.private_generator("scatter")
        factor = scatter_factor(plans[0], measures[0], data, max(question.count, 1), generator)
        silo.cache[key] = factor, alignment(data, support, question.rounds, generator)
    factor, kappa = silo.cache[key]
    scatter = torch.tensor([spread(plan, xi, data) for xi, plan in pairs], dtype=torch.float64)
    return SettleReply(distance, scatter, factor.to(question.points.dtype), kappa)


@answers(Profile)
def portions(silo: Silo, question: Profile) -> ProfileReply:
    """How the data lies along each direction."""
    data = view_of(silo, question.view)
    if question.directions.ndim != 3 or question.directions.shape[2] != data.points.shape[1]:
        raise MessageError(f"Directions arrived as {tuple(question.directions.shape)} for other points.")
    silo.divides(question.bins)
    silo.affords("a profile", numbers=8 * question.directions.shape[1] * max(len(data), data.points.shape[1]))
    return ProfileReply(torch.stack([profile(data, part, question.bins) for part in question.directions]))


def _measures(silo: Silo, points: Tensor, weight: Tensor, data: Measure) -> list[Measure]:
    """The ξ of a question, in float64, once they are seen to be measures in the silo's space."""
    if points.ndim != 3 or weight.shape != points.shape[:2] or 0 in points.shape or not points.is_floating_point():
        raise MessageError(f"Measures arrived as {tuple(points.shape)} with weights {tuple(weight.shape)}.")
    if points.shape[2] != data.points.shape[1]:
        raise MessageError(
            f"A measure arrived in {points.shape[2]} dimensions; silo '{silo.name}' has points in"
            f" {data.points.shape[1]}."
        )
    if bool((weight <= 0).any()) or bool(((weight.double().sum(1) - 1).abs() > 1e-3).any()):
        raise MessageError("A measure arrived whose weights are not positive, or do not sum to one.")
    pairs, support, width = points.shape
    silo.affords(f"plans for {pairs} measures", len(data) * support, pairs * plan_work(len(data), support, width))
    return [Measure(x, w / w.sum()) for x, w in zip(points.double(), weight.double(), strict=True)]
