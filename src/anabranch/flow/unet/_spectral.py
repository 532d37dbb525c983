"""The largest singular value of a weight, as a function of the weight and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
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
    return spectral_norms([weight], squarings)[0]


def spectral_norms(weights: Sequence[Tensor], squarings: int = 8) -> list[Tensor]:
    """σ of each weight. Those with as many outputs are squared as one stack: a GPU waits for steps, not products."""
    found: dict[int, Tensor] = {}
    for outputs in dict.fromkeys(len(weight) for weight in weights):
        places = [place for place, weight in enumerate(weights) if len(weight) == outputs]
        found |= zip(places, _largest([weights[place] for place in places], squarings), strict=True)
    return [found[place] for place in range(len(weights))]


def _largest(weights: Sequence[Tensor], squarings: int) -> Tensor:
    """σ (n,) of n weights with equally many outputs."""
    kind = weights[0].device.type
    with nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False):  # there is none for "meta"
        matrices = [weight.flatten(1) for weight in weights]
        matrices = [matrix.to(torch.promote_types(matrix.dtype, torch.float32)) for matrix in matrices]
        gram = torch.stack([matrix @ matrix.mT for matrix in matrices])
        tiny = torch.finfo(gram.dtype).tiny
        power = _of_trace_one(gram.detach(), tiny)
        for _ in range(squarings):
            power = _of_trace_one(power @ power, tiny)
        return ((gram * power).sum(dim=(1, 2)) + tiny).sqrt()


def _of_trace_one(matrices: Tensor, tiny: float) -> Tensor:
    return matrices / (matrices.diagonal(dim1=1, dim2=2).sum(1) + tiny)[:, None, None]


class SpectralConv(nn.Conv2d):
    """A 3×3 convolution with the weight W/σ(W) (Miyato et al. 2018), which the caller has from `normalised`."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=1)

    def forward(self, h: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        return F.conv2d(h, weight, self.bias, self.stride, self.padding)


def normalised(weights: Sequence[Tensor]) -> list[Tensor]:
    """W/σ(W) of each weight, in its own type."""
    norms = spectral_norms(weights)
    return [weight / norm.to(weight.dtype) for weight, norm in zip(weights, norms, strict=True)]
