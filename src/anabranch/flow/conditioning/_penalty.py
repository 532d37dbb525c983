"""How far a field is from adding up over its attributes: the conditional-independence penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.flow.conditioning._evaluate import Field, all_masks
from anabranch.flow.conditioning._masks import Masking, pair_masks


def independence_gap(joint: Tensor, marginals: Tensor, unconditional: Tensor) -> Tensor:
    """v(y) − [v(∅) + Σ_i (v(y_i) − v(∅))] (n, d): zero where the attributes act independently (DCFM, eq. (7)).

    joint and unconditional (n, d), marginals (k, n, d). The terms may come from different experts, some detached from
    the graph: then it is the gap between peers of eq. (12).
    """
    if marginals.dim() != joint.dim() + 1 or marginals.shape[1:] != joint.shape or joint.shape != unconditional.shape:
        raise UsageError(
            f"The joint velocity is {tuple(joint.shape)}, the marginal ones {tuple(marginals.shape)} and the "
            f"unconditional one {tuple(unconditional.shape)}. Give (n, d), (k, n, d) and (n, d)."
        )
    return joint + (marginals.shape[0] - 1) * unconditional - marginals.sum(dim=0)


def independence_penalty(joint: Tensor, marginals: Tensor, unconditional: Tensor) -> Tensor:
    """The mean square of the independence gap, over rows **and** coordinates: eq. (7) and (10), divided by d.

    A flow-matching loss written as a mean over all entries is divided by d as well, so λ weighs the two as in eq. (11),
    whatever the dimension.

    >>> from anabranch.flow.conditioning import Masking, all_masks
    >>> product = lambda x, t, y: x * (y.clamp_min(0) + 1).prod(dim=1, keepdim=True)
    >>> x, y = torch.ones(5, 3), torch.ones(5, 2, dtype=torch.int64)
    >>> full, *single, none = all_masks(product, x, torch.tensor(0.5), y, Masking().masks(2)[0])
    >>> independence_penalty(full, torch.stack(single), none)       # 4 − (1 + 1 + 1) = 1
    tensor(1.)
    """
    return independence_gap(joint, marginals, unconditional).square().mean()


def masked_penalty(velocities: Tensor, weight: Tensor | None = None) -> Tensor:
    """The penalty from velocities (k + 2, n, d) under all masks, in the order of `Masking.masks`.

    With `weight` (n,) rows count by it: the mean of weight · ‖gap‖² / d.
    """
    if weight is None:
        return independence_penalty(velocities[0], velocities[1:-1], velocities[-1])
    gap = independence_gap(velocities[0], velocities[1:-1], velocities[-1])
    return (weight * gap.square().flatten(1).mean(1)).mean()


def full_penalty(field: Field, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """The penalty over all attributes at once, eq. (10): one pass of (k + 2)·n rows."""
    return masked_penalty(all_masks(field, x, t, y, Masking().masks(y.shape[1], y.device)[0]))


def pair_penalty(field: Field, x: Tensor, t: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """The penalty of a random pair of attributes for each row: one pass of 4·n rows for every k (DCFM, Table 4).

    The gap is v(y_i, y_j) − v(y_i) − v(y_j) + v(∅), the other attributes null; its expectation over the draw is the
    mean over all pairs. With two attributes it is the penalty over all. With more it says nothing about v(y) itself,
    and it asks for velocities under two attributes, which the masks of eq. (8) never train.
    """
    masks = pair_masks(x.shape[0], y.shape[1], generator).to(y.device)
    return masked_penalty(all_masks(field, x, t, y, masks))
