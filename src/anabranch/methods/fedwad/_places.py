"""Where on the way a measure is taken."""

from __future__ import annotations

import torch

EDGE = 0.02  # of (0, 1): nearer to its ends a measure would be the data itself, or nothing new


def draw_t(generator: torch.Generator, fine: bool = False) -> float:
    """A random place on the way from the data to ξ, strictly inside (0, 1).

    Where an atom stands for many points, places in the middle half serve best: the value scatters least. A `fine`
    measure, exact or with nearly as many atoms as there are points, keeps the points anyway; places near the data then
    save ξ from coming to rest at a detour.
    """
    uniform = float(torch.rand((), generator=generator, dtype=torch.float64))
    return EDGE + (1 - 2 * EDGE) * uniform**3 if fine else (1 + 2 * uniform) / 4
