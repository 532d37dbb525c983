"""Points on the teachers' own paths, with their velocities there: what a student learns from instead of data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.flow.conditioning import Field


@dataclass(frozen=True)
class Replay:
    """Rows (x̂_t, t, y, v̄): a point that a teacher passed, when, on the way to what, and how fast (DCFM, eq. 15)."""

    x: Tensor
    t: Tensor
    y: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, other: Replay) -> None:
        """Becomes another one of the same size."""
        for name in ("x", "t", "y", "v"):
            getattr(self, name).copy_(getattr(other, name))

    @staticmethod
    def of(parts: list[Replay]) -> Replay:
        """All rows together."""
        return Replay(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "t", "y", "v")))


@torch.no_grad()
def follow(teacher: Field, x0: Tensor, y: Tensor, steps: int, generator: torch.Generator) -> Replay:
    """Follows the teacher from x0 (n, d) towards labels y (n, k), and notes where it was at `steps` times.

    The evaluations that move the points are the ones that are noted, so a row costs one evaluation. Each trajectory has
    times (j + u)/steps with its own u, so that all of [0, 1) is met. Steps are of second order (Adams and Bashforth),
    because the student repeats whatever error the paths have.
    """
    offset = torch.rand(len(x0), generator=generator, device=generator.device, dtype=x0.dtype).to(x0.device)
    x = x0 + offset[:, None] / steps * teacher(x0, torch.zeros_like(offset), y)
    times, points, speeds = [], [], []
    before: Tensor | None = None
    for number in range(steps):
        t = (number + offset) / steps
        v = teacher(x, t, y)
        times.append(t)
        points.append(x)
        speeds.append(v)
        x = x + (v if before is None else 1.5 * v - 0.5 * before) / steps
        before = v
    return Replay(torch.cat(points), torch.cat(times), y.repeat(steps, 1), torch.cat(speeds))
