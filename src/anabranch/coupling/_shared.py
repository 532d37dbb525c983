"""What all couplings by a shared potential f have in common: f is asked once, for one holder or for many.

`draw` pairs with f as it stands; `dual` is the holder's part of the semi-dual objective, which the holders maximise
together in f:

    max_f  E_{q0} f(x0) + Σ_i λ_i E_{q1^i} f^c(x1),      f^c(x1) = min_x0 c(x0, x1) − f(x0)          (FFM, eq. 9)

The paper's Algorithm 4 descends on this, which diverges; it is a maximum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.coupling._pairs import Pairs, Source, pair
from anabranch.coupling._pool import shared_points
from anabranch.data import Samples
from anabranch.transport import c_transform_descent, semidual

Potential = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Drawn:
    """What a holder draws before f is asked: candidates x0 (K, d), and its points x1 (B, d) of the indices (B,)."""

    x0: Tensor
    x1: Tensor
    index1: Tensor


class PotentialCoupling(ABC):
    """A coupling by a potential, which it can also help to improve.

    It is made of parts, so that f can be evaluated for many holders at once: what is `drawn`, which candidate each x1
    shall `take` given the values of f there, and f^c `transformed` from the same.
    """

    potential: Potential
    assigns = False  # whether `take` solves an assignment: on a core, and a last digit of f can change it

    def draw(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Pairs:
        """`size` pairs, of a fresh batch of x1."""
        return potential_pairs([self], [data], source, size, [generator], shared)[0]

    def dual(
        self, data: Samples, source: Source, size: int, generator: torch.Generator, shared: torch.Generator
    ) -> Tensor:
        """mean f(x0) + mean f^c(x1) on a fresh batch; its gradient flows through f at x0 and at the argmin."""
        return potential_duals([self], [data], source, size, [generator], shared)[0]

    @property
    def descent(self) -> tuple[int, float] | None:
        """Steps and rate, where f^c is found by descent and not among the candidates."""
        return None

    def reach(self, size: int) -> int:
        """How many candidates of the pool that all holders share it looks at; none, where it draws its own."""
        return 0

    @abstractmethod
    def drawn(self, data: Samples, source: Source, size: int, generator: torch.Generator, pool: Tensor) -> Drawn:
        """Candidates and a batch; the pool holds as many candidates as it looks at, or more."""

    @abstractmethod
    def take(self, drawn: Drawn, values: Tensor, generator: torch.Generator) -> Tensor:
        """The candidate (B,) of each x1, for the values (K,) of f."""

    @abstractmethod
    def transformed(self, drawn: Drawn, values: Tensor, taken: Tensor | None = None) -> Tensor:
        """f^c (B,) over the candidates, differentiable in the values; `taken` tells a coupling what it assigned."""


def prepared(potential: Potential) -> Potential:
    """f with all that its parameters alone determine computed once, where it offers that; for as long as they stay."""
    ready: Callable[[], Potential] | None = getattr(potential, "prepared", None)
    return potential if ready is None else ready()


def potential_pairs(
    couplings: Sequence[PotentialCoupling],
    holders: Sequence[Samples],
    source: Source,
    size: int,
    generators: Sequence[torch.Generator],
    shared: torch.Generator,
    workers: int = 1,
) -> list[Pairs]:
    """The pairs that each holder draws with its own numbers; f, the same for all, is evaluated once for all.

    `shared` are the numbers that all of them have alike: the pool that they look into is drawn once. So many `workers`
    solve assignments side by side.
    """
    drawn = _drawn(couplings, holders, source, size, generators, shared)
    with torch.no_grad():
        values = _values(prepared(couplings[0].potential), drawn, couplings[0].assigns)
    chosen = _taken(couplings, drawn, values, generators, workers)
    return [
        pair(data, part.x0, index0, part.x1, part.index1)
        for data, part, index0 in zip(holders, drawn, chosen, strict=True)
    ]


def potential_duals(
    couplings: Sequence[PotentialCoupling],
    holders: Sequence[Samples],
    source: Source,
    size: int,
    generators: Sequence[torch.Generator],
    shared: torch.Generator,
    workers: int = 1,
) -> Tensor:
    """Each holder's part of the semi-dual (holders,). f is the same for all, and their descents are one descent.

    `shared` and `workers` are as in `potential_pairs`.
    """
    drawn = _drawn(couplings, holders, source, size, generators, shared)
    f, descent = prepared(couplings[0].potential), couplings[0].descent
    values = _values(f, drawn, couplings[0].assigns)
    if descent is not None:
        x1 = torch.cat([part.x1 for part in drawn])
        start = torch.cat([source.points(size, generator) for generator in generators]).to(x1.device)
        found = list(torch.split(c_transform_descent(f, x1, start, *descent).value, size))
    else:
        taken: Sequence[Tensor | None] = [None] * len(drawn)
        if couplings[0].assigns:  # outside of what is differentiated: threads must not sway the order of its sums
            taken = _taken(couplings, drawn, [value.detach() for value in values], generators, workers)
        parts = zip(couplings, drawn, values, taken, strict=True)
        found = [coupling.transformed(part, value, chosen) for coupling, part, value, chosen in parts]
    return torch.stack([semidual(value, least) for value, least in zip(values, found, strict=True)])


def _drawn(
    couplings: Sequence[PotentialCoupling],
    holders: Sequence[Samples],
    source: Source,
    size: int,
    generators: Sequence[torch.Generator],
    shared: torch.Generator,
) -> list[Drawn]:
    """What each holder draws; the pool once for all of them, as long as the one who looks farthest needs it."""
    reach, device = max(coupling.reach(size) for coupling in couplings), holders[0].device
    pool = shared_points(source, reach, shared, device) if reach else torch.empty(0, device=device)
    members = zip(couplings, holders, generators, strict=True)
    return [coupling.drawn(data, source, size, own, pool) for coupling, data, own in members]


def _values(f: Potential, drawn: Sequence[Drawn], apart: bool) -> list[Tensor]:
    """f of every holder's candidates: of all at once, or where the last digit counts as each would find it alone."""
    if apart:
        return [f(part.x0) for part in drawn]
    return list(torch.split(f(torch.cat([part.x0 for part in drawn])), [len(part.x0) for part in drawn]))


def _taken(
    couplings: Sequence[PotentialCoupling],
    drawn: Sequence[Drawn],
    values: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    workers: int,
) -> list[Tensor]:
    """What each holder takes; assignments side by side, in threads that use the caller's stream of a GPU."""
    work = list(zip(couplings, drawn, values, generators, strict=True))
    device = drawn[0].x1.device
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def take(coupling: PotentialCoupling, part: Drawn, value: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad(), torch.cuda.stream(stream) if stream is not None else nullcontext():
            return coupling.take(part, value, generator)

    if not couplings[0].assigns or min(workers, len(work)) < 2:
        return [take(*one) for one in work]
    with ThreadPoolExecutor(min(workers, len(work)), thread_name_prefix="coupling") as pool:
        return list(pool.map(lambda one: take(*one), work))
