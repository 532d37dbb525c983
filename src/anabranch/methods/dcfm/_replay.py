"""Points on the teachers' own paths, with their velocities there: what a student learns from instead of data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.flow.conditioning import Additive, Field


class Counted:
    """A field that counts the rows it was asked about."""

    def __init__(self, field: Field) -> None:
        self.field, self.rows = field, 0

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        self.rows += len(x)
        return self.field(x, t, y)

    @staticmethod
    def of(field: Field) -> Counted:
        """The field, counted; if its terms can be had apart, they still can."""
        return CountedTerms(field) if isinstance(field, Additive) else Counted(field)


class CountedTerms(Counted):
    """The same of an additive field."""

    field: Additive

    def parts(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """All terms: one question."""
        self.rows += len(x)
        return self.field.parts(x, t, y)


@dataclass(frozen=True)
class Replay:
    """Rows (x̂_t, t, y, v̄): a point that a teacher passed, when, on the way to what, and how fast (DCFM, eq. 15)."""

    x: Tensor
    t: Tensor
    y: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, first: int, count: int) -> Replay:
        """Some of them, where they lie: who writes there writes here."""
        return Replay(*(part[first : first + count] for part in (self.x, self.t, self.y, self.v)))

    @staticmethod
    def room(rows: int, dimension: int, attributes: int, like: Tensor) -> Replay:
        """Room for so many rows, with numbers like this one."""
        x, v = like.new_empty(2, rows, dimension)
        return Replay(x, like.new_empty(rows), like.new_empty(rows, attributes, dtype=torch.long), v)


@torch.no_grad()
def follow(teacher: Field, x0: Tensor, y: Tensor, generator: torch.Generator, into: Replay) -> None:
    """Follows the teacher from x0 (n, d) towards labels y (n, k), and notes where it was at some times.

    How many times follows from the room in `into`. The evaluations that move the points are the ones that are noted, so
    a row costs one evaluation. Of m times each trajectory has (j + u)/m with its own u, so that all of [0, 1) is met.
    Steps are of second order (Adams and Bashforth), because the student repeats whatever error the paths have.
    """
    steps, rest = divmod(len(into), len(x0))
    if rest:
        raise ValueError(f"room for {len(into)} rows is none for as many times of each of {len(x0)} trajectories")
    offset = torch.rand(len(x0), generator=generator, device=generator.device, dtype=x0.dtype).to(x0.device)
    x = x0 + offset[:, None] / steps * teacher(x0, torch.zeros_like(offset), y)
    before: Tensor | None = None
    for number in range(steps):
        t = (number + offset) / steps
        v = teacher(x, t, y)
        now = into.rows(number * len(x0), len(x0))
        for place, value in zip((now.x, now.t, now.y, now.v), (x, t, y, v), strict=True):
            place.copy_(value)
        x = x + (v if before is None else 1.5 * v - 0.5 * before) / steps
        before = v
