"""Whether a device computes in half precision."""

from __future__ import annotations

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Whether this is a GPU that computes in bfloat16 itself: older ones only imitate it, more slowly than float32."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
