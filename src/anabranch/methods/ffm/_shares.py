"""Silos' shares λ in a pass for all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def spread(weights: Tensor, times: int, like: Tensor) -> Tensor:
    """Each weight so many times (weights · times,), where and as what `like` is.

    >>> spread(torch.tensor([0.75, 0.25]), 2, torch.zeros(1, dtype=torch.float64))
    tensor([0.7500, 0.7500, 0.2500, 0.2500], dtype=torch.float64)

    The weights are few and on the CPU. They reach a GPU as arguments of what fills the rows there: to copy them would
    mean to wait until the GPU has done all that it was given before.
    """
    return torch.cat([like.new_full((times,), weight) for weight in weights.tolist()])
