"""Exact global semi-discrete OT without moving data: both halves of the exchange.

    server                                     silo i, with atoms x_j, masses ν_j and duals g_j of its own
    Lookup(numbers, block, count)   ──────►    x0 from the shared seed; min_j c(x0, x_j) − g_j for each
    takes the minimum over silos    ◄──────    Scores
    Award(won, step)                ──────►    g_j += step · (ν_j − wins_j / count), as `SemiDual.ascend` weighs it

Neither points nor duals nor noises travel. Afterwards g stays as it is, noises are assigned in bulk the same way, and
every silo trains on the pairs that it won.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.coupling import Noises, SemiDiscrete
from anabranch.errors import RefusedError
from anabranch.federation import STEP, Done, Federation, Silo, answers
from anabranch.methods.ffm._half import FlowHalf, half_of
from anabranch.methods.ffm._messages import Award, Awarded, Lookup, Scores, Settle
from anabranch.methods.ffm._noise import BLOCK, rows_at_once, shared_noise, shared_stream
from anabranch.methods.ffm._settings import SemiDiscreteSettings
from anabranch.transport import Nearest, SemiDual, bisect, lookup, step_at

MOST_SILOS = 2**20  # whose numbers may make a seed
DUAL_STATE = ("duals", "average", "averaged", "recent", "unit")  # what a silo keeps of its fit over a restart


class SemiDiscreteServer:
    """The server half: takes minima, hands out awards, sets the step.

    No noise and no point is sent to it. It could derive the noises from the silos' numbers, but not choose them.
    """

    def __init__(self, settings: SemiDiscreteSettings, federation: Federation) -> None:
        self.settings = settings
        self.federation = federation
        self.scale = 0.0
        self.blocks = -(-settings.noises // settings.block)

    def fit(self, number: int) -> dict[str, float | Tensor]:
        """Round 1, 2, … of fitting. The step falls; the second half is averaged."""
        options = self.settings
        values = self._lookup("fit", number, options.count, settled=False)
        if not self.scale:
            self.scale = float(values.min(0).values.std())
        first, last = self.scale * options.first, self.scale * options.last
        step = step_at(number, options.rounds, first, last, self.federation.dimension)
        average = number > options.rounds // 2
        awarded = self._award(values, "fit", number, step, average, store=False)
        dual = float(values.min(0).values.double().mean()) + sum(reply.dual for reply in awarded.values())
        return {"dual": dual, "chi_square": sum(reply.chi_square for reply in awarded.values())}

    def assign(self, number: int) -> dict[str, float | Tensor]:
        """Block 1, 2, … of the bulk assignment; gives the largest error of a silo's share against its λ."""
        count = block_size(self.settings.noises, self.settings.block, number - 1)
        values = self._lookup("pool", number - 1, count, settled=True)
        self._award(values, "pool", number - 1, 0.0, average=False, store=True)
        shares = np.bincount(values.numpy().argmin(0), minlength=len(values)) / values.shape[1]
        due = np.array([self.federation.weight[name] for name in self.federation.names])
        return {"share_error": float(np.abs(shares / due - 1).max())}

    def settle(self) -> None:
        """Every silo finishes its table of pairs."""
        self.federation.everyone(Settle(self.federation.numbers, self.settings.noises, self.settings.block))

    def _lookup(self, purpose: str, block: int, count: int, settled: bool) -> Tensor:
        replies = self.federation.everyone(Lookup(self.federation.numbers, purpose, block, count, settled))
        return torch.stack([replies[name].values for name in self.federation.names])

    def _award(
        self, values: Tensor, purpose: str, block: int, step: float, average: bool, store: bool
    ) -> dict[str, Awarded]:
        winner = values.numpy().argmin(0)  # numpy's argmin takes the first of equals: the first name wins a tie
        return self.federation.everyone(
            {
                name: Award(torch.from_numpy(winner == i), purpose, block, step, average, store)
                for i, name in enumerate(self.federation.names)
            }
        )


def block_size(noises: int, block: int, number: int) -> int:
    """How many noises block 0, 1, … holds: the last one may be smaller."""
    return min(block, noises - number * block)


def dual_of(silo: Silo, half: FlowHalf) -> SemiDual:
    """The silo's atoms with their duals; groups of neighbouring points stand for them when protected."""
    found = silo.cache.get("semidual")
    if isinstance(found, SemiDual):
        return found
    x = silo.data.x
    group = max(half.settings.coupling.group, silo.smallest_group)
    if group > len(x):
        raise RefusedError(f"Silo '{silo.name}' answers for groups of {group} points or more, and holds {len(x)}.")
    atoms, size = x, torch.ones(len(x), dtype=torch.long, device=x.device)
    if group > 1:
        label = bisect(x.cpu(), group)[-1].to(x.device)
        size = torch.bincount(label)
        atoms = torch.zeros(len(size), x.shape[1], device=x.device).index_add_(0, label, x) / size[:, None]
    dual = SemiDual.start(atoms, half.weight * size / len(x))
    if "semidiscrete/duals" in silo.state:
        for name in [name for name in DUAL_STATE if f"semidiscrete/{name}" in silo.state]:
            setattr(dual, name, silo.state[f"semidiscrete/{name}"].to(x.device))
    silo.cache["semidual"] = dual
    return dual


def _check_numbers(silo: Silo, numbers: Tensor) -> None:
    if numbers.ndim != 1 or len(numbers) > MOST_SILOS:
        raise RefusedError(
            f"Silo '{silo.name}' was given numbers of shape {tuple(numbers.shape)}, not one of each silo."
        )
    if seeds.derive(silo.secret, "number", silo.seed) not in numbers.tolist():
        raise RefusedError(f"Silo '{silo.name}' was asked about noises whose seed lacks its own number.")


@answers(Lookup)
def look_up(silo: Silo, question: Lookup) -> Scores:
    """min_j c(x0, x_j) − g_j over the silo's own atoms, for noises that the silo had a say in."""
    half = half_of(silo)
    dual, dimension = dual_of(silo, half), silo.data.dimension
    # Where duals still move, starved atoms are compared with all noises of the lookup, which then must be there.
    size = min(question.count, rows_at_once(dimension)) if question.settled else question.count
    work = question.count * dimension * len(dual.atoms)
    silo.affords(f"a lookup of {question.count} noises", question.count + size * dimension, work)
    _check_numbers(silo, question.numbers)
    if not 0 <= question.block < BLOCK // 2 or question.count >= BLOCK:
        raise RefusedError(f"Silo '{silo.name}' was asked about {question.count} noises of block {question.block}.")
    asked, found = (question.purpose, question.block), []
    for first in range(0, question.count, size):
        noise = shared_noise(half, question.numbers, *asked, min(size, question.count - first), first)
        if not question.settled:
            dual.begin(noise)
        found.append(dual.lookup(noise, average=question.settled))
    if not question.settled:
        dual.feed(noise, found[0].value)
    silo.cache["lookup"] = (asked, torch.cat([part.index for part in found]))
    return Scores(torch.cat([part.value for part in found]).float().cpu())


@answers(Award)
def award(silo: Silo, question: Award) -> Awarded:
    """Learns which noises are its own: moves its duals, or stores the noises as training pairs."""
    dual = dual_of(silo, half_of(silo))
    place, index = silo.cache.get("lookup", (None, None))
    if place != (question.purpose, question.block) or len(index) != len(question.won):
        raise RefusedError(f"Silo '{silo.name}' was awarded noises of a lookup that it has not answered.")
    mine = index[question.won.to(index.device)]
    wins = torch.bincount(mine, minlength=len(dual.atoms))
    if question.store:
        packed = np.packbits(question.won.cpu().numpy())
        silo.state[f"semidiscrete/won/{question.block:06d}"] = torch.from_numpy(packed)
        # The atoms too: found again on another device, a near tie could fall the other way.
        silo.state[f"semidiscrete/atoms/{question.block:06d}"] = mine.int().cpu()
    if question.step:
        dual.ascend(wins, len(index), question.step, question.average)
        silo.state.update({f"semidiscrete/{name}": torch.as_tensor(getattr(dual, name)) for name in DUAL_STATE})
    missing = wins.double() / len(index) - dual.masses
    # Counting alone makes a χ² of (1 − ν_j)/count an atom; without it the number falls to zero as the fit converges.
    chi_square = (missing.square() / dual.masses).sum() - (1 - dual.masses).sum() / len(index)
    used = dual.average if question.store else dual.duals
    return Awarded(float((dual.masses * used).sum()), float(chi_square))


@answers(Settle)
def settle(silo: Silo, question: Settle) -> Done:
    """Fits the points' own duals to the noises won, where atoms are groups, and opens the table of pairs."""
    half = half_of(silo)
    _check_numbers(silo, question.numbers)
    silo.state["semidiscrete/numbers"] = question.numbers
    silo.state["semidiscrete/shape"] = torch.tensor([question.noises, question.block])
    if len(dual_of(silo, half).atoms) < len(silo):
        options, points, dimension = half.settings.semidiscrete, len(silo), silo.data.dimension
        work = options.local_rounds * (STEP + options.count * points * dimension)
        silo.affords(f"{options.local_rounds} rounds of its own", options.count * (points + dimension), work)
        x = silo.data.x
        fine = SemiDual.start(x, torch.full((len(x),), 1 / len(x), device=x.device))
        noise, generator = noises_won(silo, half), silo.generator("settle")
        if not len(noise):
            raise RefusedError(f"Silo '{silo.name}' won none of {question.noises} noises; assign more of them.")
        fine.fit(
            lambda count: noise[torch.randint(len(noise), (count,), generator=generator)],
            options.local_rounds,
            options.count,
            options.first,
            options.last,
        )
        silo.state["semidiscrete/fine"] = fine.average
        parts = torch.split(torch.arange(len(noise)), rows_at_once(dimension))
        found = [fine.lookup(noise[part], average=True).index for part in parts]
        silo.state["semidiscrete/points"] = torch.cat(found).int().cpu()
    half.coupling = table(silo, half)
    for name in ("semidual", "lookup"):  # as large as the data; made again from the state where they are asked for
        silo.cache.pop(name, None)
    return Done()


def noises_won(silo: Silo, half: FlowHalf) -> Noises:
    """All noises that the silo won in the bulk assignment, by their numbers in the shared stream."""
    noises, size = silo.state["semidiscrete/shape"].tolist()
    won = []
    for block in range(_blocks_awarded(silo)):
        count = block_size(noises, size, block)
        packed = silo.state[f"semidiscrete/won/{block:06d}"].numpy()
        if len(packed) != -(-count // 8):  # numpy would make up the missing ones
            raise RefusedError(f"Silo '{silo.name}' was told of {count} noises in block {block}, but awarded others.")
        won.append(block * BLOCK + np.flatnonzero(np.unpackbits(packed, count=count)))
    stream = shared_stream(half, silo.state["semidiscrete/numbers"], "pool")
    return Noises(stream, torch.from_numpy(np.concatenate(won)).to(half.device))


def _blocks_awarded(silo: Silo) -> int:
    noises, size = silo.state["semidiscrete/shape"].tolist()
    if noises < 1 or size < 1:
        raise RefusedError(f"Silo '{silo.name}' was told of {noises} noises in blocks of {size}.")
    return int(-(-noises // size))


def table(silo: Silo, half: FlowHalf) -> SemiDiscrete | None:
    """The pairs that the silo trains on, once they exist; found again, not made again, after a restart."""
    if "semidiscrete/shape" not in silo.state:
        return None
    kept = [f"semidiscrete/atoms/{block:06d}" for block in range(_blocks_awarded(silo))]
    if not all(name in silo.state for name in kept):
        raise RefusedError(
            f"Silo '{silo.name}' does not hold all its pairs, or those of a version that drew other noises. Train anew."
        )
    noise = noises_won(silo, half)
    points = silo.state.get("semidiscrete/points")  # where atoms are groups
    index = torch.cat([silo.state[name] for name in kept]) if points is None else points
    return SemiDiscrete(replace(noise, dtype=half.settings.flow.dtype), index.long().to(half.device))


def place(silo: Silo, noise: Tensor) -> Nearest:
    """What the silo would answer to these noises once fitting is over, and the point that each would be paired with."""
    found = dual_of(silo, half_of(silo)).lookup(noise, average=True)
    fine = silo.state.get("semidiscrete/fine")
    return found if fine is None else Nearest(found.value, lookup(noise, silo.data.x, fine.to(noise.device)).index)
