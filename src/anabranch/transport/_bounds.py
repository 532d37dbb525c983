"""Lower bounds of W_p from summaries: what two measures must be apart, judged from a few projections of each.

Along orthogonal directions squared displacements add up, so W₂² is at least the sum of the projections' own W₂², and
the rest of the space adds at least the squared distance of the means in it. Along a line, mass moves in order; the
means of equal portions of that order bound the cost from below by Jensen's inequality.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.transport._measure import Measure


def profile(x: Measure, directions: Tensor, bins: int) -> Tensor:
    """(r, bins): along each direction (r, d), the mean of every successive 1/bins of the mass.

    >>> from anabranch.transport import measure
    >>> profile(measure([[0.0], [3.0], [1.0], [2.0]]), torch.tensor([[1.0]]), 2)
    tensor([[0.5000, 2.5000]], dtype=torch.float64)
    """
    if bins < 1:
        raise UsageError(f"A profile of {bins} portions cannot be; give one or more.")
    x = x.double()
    along, order = (x.points @ directions.double().T).T.sort(1)
    weight = x.weight[order]
    zero = along.new_zeros(len(along), 1)
    filled = torch.cat([zero, weight.cumsum(1)], 1)
    filled = filled / filled[:, -1:].clone()
    integral = torch.cat([zero, (weight * along).cumsum(1)], 1)  # of the quantile function: linear between points
    edges = torch.linspace(0, 1, bins + 1, dtype=along.dtype, device=along.device).expand(len(along), -1).contiguous()
    right = torch.searchsorted(filled, edges).clamp(1, weight.shape[1])
    left = right - 1
    part = (edges - filled.gather(1, left)) / (filled.gather(1, right) - filled.gather(1, left))
    at_edges = torch.lerp(integral.gather(1, left), integral.gather(1, right), part.clamp(0, 1))
    return at_edges.diff(dim=1) * bins


def lower_bound(
    directions: Tensor, profiles: tuple[Tensor, Tensor], means: tuple[Tensor, Tensor], power: float = 2.0
) -> float:
    """W_p is at least this, for measures with these means (d,) and profiles along orthonormal directions (r, d).

    For p < 2 squares do not add up, and the best single direction counts; W_p ≥ W_2 for p ≥ 2.
    """
    gram = directions.double() @ directions.double().T
    if not torch.allclose(gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device), atol=1e-5):
        raise UsageError("The directions are not orthonormal; the squares along them do not add up.")
    apart = (profiles[0] - profiles[1]).double().abs()
    shift = (means[0] - means[1]).double()
    if power < 2:
        along = float((apart**power).mean(1).max()) / float(gram.diagonal().max()) ** (power / 2)
        return max(float(along ** (1 / power)), float(shift.norm()))
    # Directions are orthonormal to rounding only, which must not lift the bound above the truth.
    beyond = shift - directions.double().T @ (directions.double() @ shift)
    total = apart.square().mean(1).sum() / torch.linalg.matrix_norm(gram, 2) + beyond.square().sum()
    return float(total.sqrt()) * (1 - 1e-6)
