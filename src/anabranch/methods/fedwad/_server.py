"""The server half: it sees ξ and what silos answer, never their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import UsageError, unknown
from anabranch.federation import Federation
from anabranch.methods.fedwad._bounds import Bounds, bounds_of
from anabranch.methods.fedwad._comparison import Comparison, Round, Side, key
from anabranch.methods.fedwad._group import Group, Held
from anabranch.methods.fedwad._messages import Moments
from anabranch.methods.fedwad._places import draw_t
from anabranch.methods.fedwad._refine import refine
from anabranch.methods.fedwad._settings import WadSettings
from anabranch.methods.fedwad._views import view_width
from anabranch.transport import Measure, interpolate, measure

Watch = Callable[[int, int], None]
AllMoments = dict[str | int, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Distance:
    """W_p between two data sets that never met.

    `value` = W_p(μ, ξ) + W_p(ξ, ν) is never below the exact distance; `debiased` is the best guess (p = 2), `lower`
    never above it. `bytes` counts both ways, by silo.
    """

    value: float
    debiased: float | None
    lower: float | None
    measure: Measure
    rounds: tuple[Round, ...]
    converged: bool
    bytes: dict[str, int]


NOTHING = Distance(0.0, 0.0, 0.0, Measure(torch.zeros(0, 1), torch.zeros(0)), (), True, {})


def distance(
    federation: Federation,
    first: Side,
    second: Side | Sequence[str],
    settings: WadSettings | None = None,
    seed: int = 0,
    start: Measure | None = None,
    watch: Watch | None = None,
) -> Distance:
    """W_p between two silos (FedWAD, Algorithm 1); either may be a measure that the server holds.

    The second may also be many silos that hold one data set together, by their names.

    >>> from anabranch import Silo
    >>> grid = torch.cartesian_prod(torch.arange(10.0), torch.arange(10.0))
    >>> federation = Federation([Silo("a", grid, secret=1), Silo("b", grid + torch.tensor([3.0, 4.0]), secret=2)])
    >>> found = distance(federation, "a", "b", WadSettings(support=25))
    >>> found.lower <= 5 <= found.value, abs(found.debiased - 5) < 0.1
    (True, True)
    """
    if not isinstance(second, str | Measure):
        return _to_group(federation, first, list(second), settings or WadSettings(), seed, start, watch)
    return distances(federation, [(first, second)], settings, seed, start, watch)[0]


def distances(
    federation: Federation,
    pairs: Sequence[tuple[Side, Side]],
    settings: WadSettings | None = None,
    seed: int = 0,
    start: Measure | None = None,
    watch: Watch | None = None,
    run: str = "",
) -> list[Distance]:
    """The distances of many pairs side by side: every silo is asked once a round, about all pairs it belongs to."""
    settings = settings or WadSettings()
    before = {name: federation.ledger.bytes(silo=name) for name in federation.engine.names}
    federation.open(run or f"fedwad-{seed}", seed)
    for side in (side for pair in pairs for side in pair):
        if isinstance(side, str) and side not in federation.names:
            raise unknown("silo", side, federation.names)
    apart = [pair for pair in pairs if not _same(pair)]
    moments = _moments(federation, apart, settings)
    comparisons = [
        Comparison(*pair, start or _start(federation, pair, moments, settings, seeds.generator(seed, "start", number)))
        for number, pair in enumerate(apart)
    ]
    for number in range(1, settings.rounds + 1):
        active = [comparison for comparison in comparisons if not comparison.converged]
        if not active:
            break
        federation.start_round(number)
        refine(federation, active, settings, seed, number)
        if watch is not None:
            watch(number, settings.rounds)
    federation.start_round(settings.rounds + 1)
    bounds = iter(bounds_of(federation, comparisons, moments, settings))
    spent = {name: federation.ledger.bytes(silo=name) - before[name] for name in federation.names}
    found = iter(_result(comparison, next(bounds), spent) for comparison in comparisons)
    return [NOTHING if _same(pair) else next(found) for pair in pairs]


def _to_group(
    federation: Federation,
    first: Side,
    names: list[str],
    settings: WadSettings,
    seed: int,
    start: Measure | None,
    watch: Watch | None,
) -> Distance:
    """The same between one side and a group; the lower bound is the distance of the means, and nothing is debiased."""
    if settings.exact or settings.reveal != "end" or settings.tolerance:
        raise UsageError("A distance to a group has one atom for each of ξ, all its rounds, and reveals at the end.")
    federation.open(f"fedwad-{seed}", seed)
    silos = [*names, *([first] if isinstance(first, str) else [])]
    for name in silos:
        if name not in federation.names:
            raise unknown("silo", name, federation.names)
    moments = _moments(federation, [(first, name) for name in names], replace(settings, bounds=True))
    group = Group(federation, names, settings)
    moments["group"] = group.pool([moments[name] for name in names])
    other = Held(first, settings.power) if isinstance(first, Measure) else Group(federation, [first], settings)
    xi = start or _start(federation, (first, "group"), moments, settings, seeds.generator(seed, "start", 0))
    rounds = []
    for number in range(1, settings.rounds + 1):
        federation.start_round(number)
        generator = seeds.generator(seed, "fedwad", number, 0)
        t = [draw_t(generator) if settings.t is None else settings.t for _ in range(3)]
        xi = interpolate(other.towards(xi, t[0]), group.towards(xi, t[1]), t[2], settings.power).measure
        rounds.append(Round(number, len(xi), None, None))
        if watch is not None:
            watch(number, settings.rounds)
    federation.start_round(settings.rounds + 1)
    far, xi = group.settle(xi)  # which decides the weights of ξ
    near, xi = other.settle(xi)
    lower = float((moments[key(first)][0] - moments["group"][0]).norm()) if settings.bounds else None
    spent = {name: federation.ledger.bytes(silo=name) for name in silos}
    return Distance(near + far, None, lower, xi, tuple(rounds), False, spent)


def _same(pair: tuple[Side, Side]) -> bool:
    """Whether both sides are one silo, which is at distance 0 from itself without being asked."""
    return isinstance(pair[0], str) and pair[0] == pair[1]


def _moments(federation: Federation, pairs: Sequence[tuple[Side, Side]], settings: WadSettings) -> AllMoments:
    """Mean and scale of every side; asked for only where ξ starts from them or a bound needs them."""
    if not settings.bounds and settings.start != "statistics":
        return {}
    sides = [side for pair in pairs for side in pair]
    names = sorted({side for side in sides if isinstance(side, str)})
    replies = federation.everyone(dict.fromkeys(names, Moments(settings.view))) if names else {}
    found: AllMoments = {name: (reply.mean, reply.deviation) for name, reply in replies.items()}
    for side in sides:
        if isinstance(side, Measure):
            whole = side.double()
            mean = whole.weight @ whole.points
            found[key(side)] = mean, (whole.weight @ (whole.points - mean).square()).sqrt()
    return found


def _start(
    federation: Federation,
    pair: tuple[Side, Side],
    moments: AllMoments,
    settings: WadSettings,
    generator: torch.Generator,
) -> Measure:
    """ξ of the beginning: Gaussian atoms about the mean of both sides, or about zero."""
    wide = next((side.points.shape[1] for side in pair if isinstance(side, Measure)), None)
    width = view_width(settings.view, federation.dimension) if wide is None else wide
    noise = torch.randn(settings.support, width, generator=generator, dtype=torch.float64)
    if settings.start == "gaussian":
        return measure(noise)
    means, deviations = zip(*(moments[key(side)] for side in pair), strict=True)
    scale = (sum(deviation.square() for deviation in deviations) / 2).sqrt()
    return measure(sum(means) / 2 + scale * noise)


def _result(comparison: Comparison, bounds: Bounds, spent: dict[str, int]) -> Distance:
    return Distance(
        bounds.value,
        bounds.debiased,
        bounds.lower,
        comparison.xi,
        tuple(comparison.rounds),
        comparison.converged,
        {side: spent[side] for side in comparison.sides if isinstance(side, str)},
    )
