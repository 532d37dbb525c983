"""How far two sets of features are apart without fitting Gaussians: KID, whose expectation does not depend on n."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.metrics._points import same_space


@dataclass(frozen=True)
class KernelDistance:
    """The mean over `blocks` of the squared discrepancy, and that mean's standard `error`."""

    value: float
    error: float
    blocks: int


def kernel_distance(
    real: Tensor, generated: Tensor, generator: torch.Generator, blocks: int = 10, chunk: int = 1024
) -> KernelDistance:
    """MMD² with k(x, y) = (x·y / d + 1)³, of features (n, d) and (m, d), in float64; KID where they are Inception's.

    Both sets are divided at random into blocks that share no point, each block of the one meets one of the other, and

        MMD² = mean_{i≠j} k(x_i, x_j) + mean_{i≠j} k(y_i, y_j) − 2 mean_{ij} k(x_i, y_j)

    is unbiased whatever their sizes: it compares across numbers of images, which FID does not. For equal distributions
    it is around zero, and as often negative. Blocks are independent, so the error is honest; the usual hundred parts
    drawn from the same images overlap, and their deviation says nothing of the error of the mean.

    Bińkowski et al., "Demystifying MMD GANs" (2018), section 4.

    >>> from anabranch.seeds import generator
    >>> zeros, ones = torch.zeros(20, 1), torch.ones(20, 1)
    >>> kernel_distance(zeros, ones, generator(0), blocks=2)     # 1 + 8 − 2
    KernelDistance(value=7.0, error=0.0, blocks=2)
    """
    x, y = same_space(real, generated, ("real", "generated"))
    least = min(len(x), len(y))
    if not 2 <= blocks <= least // 2:
        raise UsageError(
            f"{blocks} blocks were asked for, of {len(x)} real and {len(y)} generated points; there must be two blocks"
            f" at least, for the error, with two points each: from 2 to {least // 2}."
        )
    parts = zip(_blocks(x, blocks, generator), _blocks(y.to(x.device), blocks, generator), strict=True)
    found = torch.stack([_squared_discrepancy(one, other, chunk) for one, other in parts])
    return KernelDistance(float(found.mean()), float(found.std() / blocks**0.5), blocks)


def _blocks(points: Tensor, blocks: int, generator: torch.Generator) -> list[Tensor]:
    """Blocks of one size; fewer points than blocks are left over."""
    order = torch.randperm(len(points), generator=generator).to(points.device)
    size = len(points) // blocks
    return [points[part] for part in torch.split(order[: size * blocks], size)]


def _squared_discrepancy(x: Tensor, y: Tensor, chunk: int) -> Tensor:
    return _others(x, chunk) + _others(y, chunk) - 2 * _sum(x, y, chunk) / (len(x) * len(y))


def _others(x: Tensor, chunk: int) -> Tensor:
    """mean_{i≠j} k(x_i, x_j)."""
    own = _kernel(x.square().sum(1), x.shape[1]).sum()
    return (_sum(x, x, chunk) - own) / (len(x) * (len(x) - 1))


def _sum(x: Tensor, y: Tensor, chunk: int) -> Tensor:
    return torch.stack([_kernel(part @ y.T, x.shape[1]).sum() for part in torch.split(x, chunk)]).sum()


def _kernel(products: Tensor, dimension: int) -> Tensor:
    return (products / dimension + 1) ** 3
