"""One batched pass of a conditional field under many masks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from anabranch.errors import UsageError
from anabranch.flow.conditioning._masks import masked

Field = Callable[[Tensor, Tensor, Tensor], Tensor]
"""v(x, t, y): x (n, d), t (n,) or a single time, y (n, k) codes with NULL where not given; returns (n, d)."""


@runtime_checkable
class Additive(Protocol):
    """A field whose terms can be had apart."""

    def parts(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor: ...


class AdditiveField(nn.Module):
    """A network that is a sum, v(x, t, y) = c(x, t) + Σ_{i given} d_i(x, t, y_i).

    The effect of one attribute does not depend on the others, so the composition of DCFM, eq. (5), holds by
    construction: with w = 1 it is the field itself, and its independence gap is zero. A new additive network gives
    `parts`; the sum, every mask and every composition follow from these k + 1 terms.
    """

    @abstractmethod
    def parts(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The terms c, d_1, …, d_k (k + 1, n, d); the term of an attribute that is not given is zero."""

    def forward(self, x: Tensor, t: Tensor, y: Tensor, apart: bool = False) -> Tensor:
        """The sum of all terms, or the terms `apart`."""
        parts = self.parts(x, t, y)
        return parts if apart else parts.sum(dim=0)


def stacked(x: Tensor, t: Tensor, y: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The m·n rows (x, t, y ⊙ m) of m masks, mask after mask, ready for one pass.

    x (n, d), t (n,) or a single time (which stays single), y (n, k); masks (m, k), or (m, n, k) for masks that differ
    from row to row.
    """
    if y.dim() != 2 or y.shape[0] != x.shape[0] or masks.shape[-1] != y.shape[1]:
        raise UsageError(
            f"Points {tuple(x.shape)}, codes {tuple(y.shape)} and masks {tuple(masks.shape)} do not fit together. "
            "Give x (n, d), y (n, k) and masks (m, k) or (m, n, k)."
        )
    count = masks.shape[0]
    codes = masked(y, masks if masks.dim() == 3 else masks.unsqueeze(1))
    times = t if t.dim() == 0 else t.repeat(count)
    return x.repeat(count, 1), times, codes.flatten(0, 1)


def all_masks(field: Field, x: Tensor, t: Tensor, y: Tensor, masks: Tensor) -> Tensor:
    """v(x, t, y ⊙ m) for every mask m, (m, n, d), in one pass of m·n rows.

    Arguments as in `stacked`. An additive field is passed only once for all masks: each is a partial sum of its terms.
    """
    if isinstance(field, Additive):
        return _partial_sums(field.parts(x, t, y), masks)
    rows = field(*stacked(x, t, y, masks))
    return rows.reshape(masks.shape[0], *x.shape)


def _partial_sums(parts: Tensor, masks: Tensor) -> Tensor:
    shown = masks.to(parts.device, parts.dtype)
    pattern = "mnk,knd->mnd" if masks.dim() == 3 else "mk,knd->mnd"
    return parts[0] + torch.einsum(pattern, shown, parts[1:])
