"""The largest singular value of a weight, as a function of the weight and nothing else."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def spectral_norm(weight: Tensor, squarings: int = 8) -> Tensor:
    """σ(W), the largest singular value of W as a matrix (outputs, rest), from below; a scalar in float32 or finer.

    With G = W Wᵀ, P = G^(2^squarings) by repeated squaring, σ² = ⟨G, P⟩ / tr P: the mean of all σ_i² with weights
    σ_i^(2·2^squarings), where the largest prevails. P is held constant in the gradient, which is u vᵀ as P → u uᵀ.

    Miyato et al. 2018 carry u and v from step to step by one power iteration each. They would be state, changed by
    being evaluated: silos that evaluate the same weights a different number of times, or one after another where
    another engine has them at once, would disagree on the function whose gradients they add. This one has no state and
    no start vector, and for the price of a few small products it is as good as 2^squarings power iterations.
    """
    matrix = weight.flatten(1)
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    kind = matrix.device.type
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        gram = matrix @ matrix.mT
        tiny = torch.finfo(gram.dtype).tiny
        power = gram.detach()
        power = power / (power.diagonal().sum() + tiny)
        for _ in range(squarings):
            power = power @ power
            power = power / (power.diagonal().sum() + tiny)
        return ((gram * power).sum() + tiny).sqrt()


class SpectralConv(nn.Conv2d):
    """A 3×3 convolution with the weight W/σ(W) (Miyato et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        weight = self.weight / spectral_norm(self.weight).to(self.weight.dtype)
        return F.conv2d(h, weight, self.bias, self.stride, self.padding)
