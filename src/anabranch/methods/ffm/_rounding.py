"""Parameters rounded to half precision, all in one go and not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Rounded(torch.autograd.Function):
    """All tensors as bfloat16, and their gradients in the precision that they came from: a few kernels each way."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return copied(tensors, [torch.bfloat16] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        return copied(slopes, ctx.dtypes)


def rounded(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What `tensor.to(torch.bfloat16)` gives for each, differentiable, to the bit.

    A UNet has hundreds of parameters, most of them small: one by one, to begin a kernel takes longer than the kernel.
    """
    found: tuple[Tensor, ...] = _Rounded.apply(*tensors)  # type: ignore[no-untyped-call]
    return found


def copied(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """Each as numbers of its type, in the order of memory that it has, which is what lets them be copied together."""
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
