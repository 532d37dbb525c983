"""How a GPU computes convolutions: two switches of torch, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def convolutions(precision: str | None = None, tried: bool = False) -> Iterator[None]:
    """Within, numbers of 32 bits are multiplied as `precision` says, "ieee" or "tf32" (None: as before).

    GPUs round convolutions to eleven bits unless told not to, whatever is said of matrix products. If `tried`, those
    kernels are taken that turn out to be the fastest, unless who started the program wants the same bits always.
    """
    settings, cudnn = torch.backends.cudnn.conv, torch.backends.cudnn  # type: ignore[attr-defined]
    before = settings.fp32_precision, cudnn.benchmark
    if precision is not None:
        settings.fp32_precision = precision
    cudnn.benchmark = cudnn.benchmark or (tried and not cudnn.deterministic)
    try:
        yield
    finally:
        settings.fp32_precision, cudnn.benchmark = before
