"""Whether many numbers are finite, at the price of one look."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def not_finite(numbers: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite; None if all are.

    Whoever looks at a GPU's numbers waits for them, and a network has hundreds of tensors: one look at all of them must
    do. The sum of their norms is finite only if every number is. Where it is not, because of one of them or since a
    norm overflows, each tensor is looked at.

    >>> large = torch.full((4,), 1e38)
    >>> not_finite({"a": large}), not_finite({"a": large, "b": large / 0})
    (None, 'b')
    """
    if all(math.isfinite(float(total)) for total in norms(numbers.values()).values()):
        return None
    return next((name for name, tensor in numbers.items() if not bool(torch.isfinite(tensor).all())), None)


def norms(tensors: Iterable[Tensor]) -> dict[torch.device, Tensor]:
    """The sum of the tensors' norms on each device, in float64: a few passes for all of them, and no look."""
    alike: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        alike[tensor.device, tensor.dtype].append(tensor.detach())
    sums: dict[torch.device, Tensor] = {}
    for (device, _), group in alike.items():
        total = torch.stack(torch._foreach_norm(group)).double().sum()
        sums[device] = sums[device] + total if device in sums else total
    return sums
