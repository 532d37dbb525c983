"""How much arithmetic a step takes: what a device's best time is reckoned from."""

from __future__ import annotations

import copy
import inspect
import math

import torch
from torch import nn

from anabranch.errors import UsageError


def flops(network: nn.Module, batch: int, training: bool = True) -> int:
    """Floating-point operations of one pass of an image network (one with a `shape`) on a batch of so many rows.

    Products and convolutions, each multiplication and addition counted as one; `training` adds the gradient in the
    parameters. Counted on tensors without numbers: nothing is computed, and the network stays as it is. Norms,
    activations and the optimiser are left out: they are bound by memory.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = getattr(network, "shape", None)
    if shape is None or batch < 1:
        raise UsageError(f"Operations are counted for networks with a shape and one row or more, not {batch} rows.")
    ghost = copy.deepcopy(network).to("meta")
    x = torch.empty(batch, math.prod(shape), device="meta")
    timed = "t" in inspect.signature(network.forward).parameters
    inputs = (x, torch.empty(batch, device="meta")) if timed else (x,)
    # Attention written out, since the fused kernels are counted on some devices only.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(training):
        loss = ghost(*inputs).square().mean()
        if training:
            loss.backward()
    return int(counter.get_total_flops())
