"""Pairing apart from training: the exact plan of a batch, and semi-discrete lookups as the points grow in number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.bench._clock import Budget, exponent, interleaved
from anabranch.bench._peer import missing, require_torchcfm
from anabranch.bench._row import Row, compared
from anabranch.coupling import MinibatchOT, SemiDiscrete
from anabranch.data import Points, shape
from anabranch.transport import lookup

Watch = Callable[[str], None]

BATCH = 256
# Points that a noise is looked up among. No powers of two: their rows fall on the same lines of a processor's cache.
SIZES = (1000, 4000, 16000, 64000)
NOISES = 2048
TABLE = 2**20  # pairs that training draws from
LARGEST_EXPONENT = 1.05
LARGEST_GROWTH = 1.5  # of a training draw, from the fewest points to the most


@dataclass(frozen=True)
class _Given:
    """A source whose points are drawn already, so that drawing them costs nothing."""

    x: Tensor

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        return self.x[:count]


def coupling_rows(budget: Budget, watch: Watch) -> list[Row]:
    """The exact plan of one batch and the pairs it gives; the points are drawn beforehand."""
    what = f"exact pairing, {BATCH} with {BATCH}"
    watch(what)
    generator = seeds.generator(0, "bench", "pairing")
    x0, x1 = shape("8gaussians").points(BATCH, generator), shape("moons").sample(BATCH, generator)
    source, coupling = _Given(x0), MinibatchOT()
    tasks: dict[str, Callable[[], object]] = {}
    if not missing():
        sampler = require_torchcfm().optimal_transport.OTPlanSampler(method="exact")
        tasks["peer"] = lambda: sampler.sample_plan(x0, x1.x)
    tasks["ours"] = lambda: coupling.draw(x1, source, BATCH, generator, generator)
    times = interleaved(tasks, budget)
    return [compared(what, times.get("peer"), times["ours"])]


def lookup_rows(budget: Budget, watch: Watch) -> list[Row]:
    """Semi-discrete pairing: a lookup among N points costs ∝ N at most, a training draw does not depend on N."""
    watch("semi-discrete pairing")
    generator = seeds.generator(0, "bench", "lookup")
    noise = shape("8gaussians").points(NOISES, generator)
    holders = {size: shape("moons").sample(size, generator) for size in SIZES}
    times = _by_size(holders, lambda data: _looking_up(noise, data, generator), budget)
    rows = [Row(f"lookup of {NOISES} noises among {size} points", ours=times[size]) for size in SIZES]
    power = exponent(SIZES, [times[size] for size in SIZES])
    rows.append(Row("exponent of the lookup's time in the points", value=power, limit=LARGEST_EXPONENT, rule="≤"))

    few, many = SIZES[0], SIZES[-1]
    table = shape("8gaussians").points(TABLE, generator)
    ends = {size: holders[size] for size in (few, many)}
    draws = _by_size(ends, lambda data: _drawing(table, data, generator), budget)
    rows += [Row(f"training draw of {BATCH} pairs, {size} points", ours=draws[size]) for size in (few, many)]
    growth = draws[many] / draws[few]
    rows.append(Row(f"growth of the draw's time, {few} to {many} points", value=growth, limit=LARGEST_GROWTH, rule="≤"))
    return rows


def _by_size(
    holders: dict[int, Points], task: Callable[[Points], Callable[[], object]], budget: Budget
) -> dict[int, float]:
    times = interleaved({str(size): task(data) for size, data in holders.items()}, budget)
    return {size: times[str(size)] for size in holders}


def _looking_up(noise: Tensor, data: Points, generator: torch.Generator) -> Callable[[], object]:
    duals = torch.rand(len(data), generator=generator, dtype=torch.float64)
    return lambda: lookup(noise, data.x, duals)


def _drawing(table: Tensor, data: Points, generator: torch.Generator) -> Callable[[], object]:
    coupling = SemiDiscrete(table, torch.randint(len(data), (len(table),), generator=generator))
    return lambda: coupling.draw(data, _Given(table), BATCH, generator, generator)
