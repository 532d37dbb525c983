"""One round of the server half: ξ moves between what the two sides answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from anabranch import seeds
from anabranch.federation import Federation
from anabranch.methods.fedwad._comparison import Comparison, Round, ask, size, stacked
from anabranch.methods.fedwad._messages import Interpolate
from anabranch.methods.fedwad._places import draw_t
from anabranch.methods.fedwad._settings import PRECISIONS, WadSettings
from anabranch.transport import Measure, interpolate, thinned, wasserstein

LARGEST = 4  # atoms of an exact ξ for each point of the two sides, at most
AT_REST = 0.01  # of the distance: what a measure may still change by after its last round and be called converged


def refine(federation: Federation, active: list[Comparison], settings: WadSettings, seed: int, number: int) -> None:
    """One round for all pairs: both sides answer with a measure towards theirs, and ξ moves between the two."""
    dtype, reveal = PRECISIONS[settings.precision], settings.reveal == "each round"
    for group in [[one] for one in active] if settings.exact else [active]:  # exact supports differ in size
        most = LARGEST * sum(size(federation, side) for side in group[0].sides)

        def question(of: list[Comparison], most: int = 2 * most) -> Interpolate:
            points, weight = stacked([comparison.xi for comparison in of], dtype)
            view, power, exact = settings.view, settings.power, settings.exact
            return Interpolate(points, weight, view, power, exact, most, reveal, settings.t)

        replies = ask(federation, group, question)
        for place, comparison in enumerate(group):
            generator = seeds.generator(seed, "fedwad", number, active.index(comparison))
            _advance(comparison, place, replies, settings, most, generator)


def _advance(
    comparison: Comparison,
    place: int,
    replies: Mapping[tuple[int, int], tuple[Any, int]],
    settings: WadSettings,
    most: int,
    generator: torch.Generator,
) -> None:
    """ξ becomes a measure between the two answers; says how far it moved, and whether it may rest."""
    power, old = settings.power, comparison.xi
    draw = [draw_t(generator, fine) if settings.t is None else settings.t for fine in (settings.exact,) * 2 + (False,)]
    ends: list[Measure] = []
    revealed: list[tuple[float, float]] = []
    for side, who in enumerate(comparison.sides):
        if isinstance(who, Measure):
            way = interpolate(who.double(), old.double(), draw[side], power, settings.exact)
            ends.append(way.measure)
            revealed.append((float(way.distance), float(wasserstein(who, way.measure, power))))
        else:
            reply, k = replies[place, side]
            ends.append(Measure(reply.points[k].double(), reply.weight[k].double() / reply.weight[k].double().sum()))
            if reply.distance is not None:
                revealed.append((float(reply.distance[k]), float(reply.apart[k])))
    across = interpolate(ends[0], ends[1], draw[2], power, settings.exact)
    straight = float(across.distance)
    new = across.measure if len(across.measure) <= most else _lighter(across.measure, old, ends, power, most)
    moved = bend = None
    if settings.tolerance or len(comparison.rounds) + 1 == settings.rounds:
        moved = float(wasserstein(old, new, power))
        over = sum(float(wasserstein(end, old, power)) for end in ends)
        bend = max(over / straight - 1, 0.0) if straight else 0.0
        # With a fixed t ξ comes to rest; with random ones it keeps moving along the geodesic once it lies on it.
        change = bend if settings.t is None else moved / max(straight, 1e-300)
        comparison.converged = change <= (settings.tolerance or AT_REST)
    value = bound = None
    if settings.reveal == "each round":
        rest = sum(float(wasserstein(end, new, power)) for end in ends)
        value, bound = sum(d for d, _ in revealed), sum(a for _, a in revealed) + rest
    comparison.rounds.append(Round(len(comparison.rounds) + 1, len(new), moved, bend, value, bound))
    comparison.xi, comparison.ends = new, (ends[0], ends[1])


def _lighter(atoms: Measure, old: Measure, ends: list[Measure], power: float, most: int) -> Measure:
    """The measure thinned out, unless the ξ before lies better between the ends: so the bound never rises."""
    thin = thinned(atoms, most)
    over = [sum(float(wasserstein(end, xi, power)) for end in ends) for xi in (thin, old)]
    return thin if over[0] <= over[1] else old
