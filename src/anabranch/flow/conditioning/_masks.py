"""Which attributes a network is told: masks, their probabilities, labels with null tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError

NULL = -1
"""The code of an attribute that is not given, ∅."""


@dataclass(frozen=True)
class Masking:
    """How often a sample shows all its attributes, one of them, or none: p(m) of DCFM, eq. (8).

    p(1) = π_full, p(e_i) = π_marg / k for each attribute i, p(0) = π_uncond. The three weights are
    probabilities and sum to one.

    >>> mask, weight = Masking(full=0.9, marginal=0.06, unconditional=0.04).masks(2)
    >>> mask.int().tolist(), [round(value, 3) for value in weight.tolist()]
    ([[1, 1], [1, 0], [0, 1], [0, 0]], [0.9, 0.03, 0.03, 0.04])
    """

    full: float = 0.96
    marginal: float = 0.02
    unconditional: float = 0.02

    def __post_init__(self) -> None:
        weights = (self.full, self.marginal, self.unconditional)
        given = f"full = {self.full}, marginal = {self.marginal}, unconditional = {self.unconditional}"
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise UsageError(f"Mask weights are probabilities, but given were {given}. Give numbers from 0 to 1.")
        if not math.isclose(sum(weights), 1, abs_tol=1e-6):
            raise UsageError(f"Mask weights must sum to one, but {given} sum to {sum(weights):g}. Change one of them.")

    def masks(self, k: int, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """All masks (k + 2, k), in the order 1, e_1, …, e_k, 0, and the probability (k + 2,) of each.

        With one attribute 1 and e_1 are the same mask; both stay, so that the order is the same for every k.
        """
        check_attributes(k)
        one = torch.ones(1, k, dtype=torch.bool, device=device)
        mask = torch.cat([one, torch.eye(k, dtype=torch.bool, device=device), ~one])
        return mask, weights_on(device, self.full, *[self.marginal / k] * k, self.unconditional)

    def pairs(self) -> tuple[float, ...]:
        """Weights of a whole label, then of the four masks of `pair_masks`: π_marg is divided among the first three."""
        third = self.marginal / 3
        return self.full, third, third, third, self.unconditional

    def draw(self, count: int, k: int, generator: torch.Generator) -> Tensor:
        """`count` masks (count, k) drawn from p(m), on the generator's device."""
        mask, weight = self.masks(k, generator.device)
        chance = torch.rand(count, generator=generator, device=generator.device)
        return mask[(chance[:, None] >= weight.cumsum(0)[:-1]).sum(1)]


def weights_on(device: torch.device | str | None, *weights: float) -> Tensor:
    """Numbers as a tensor that is filled where it lies: a copy from the CPU cannot be recorded as a CUDA graph."""
    return torch.cat([torch.full((1,), weight, device=device) for weight in weights])


def masked(y: Tensor, mask: Tensor) -> Tensor:
    """y ⊙ m: the codes y (…, k), with NULL wherever the mask, of a shape that broadcasts, is False.

    >>> masked(torch.tensor([[3, 1], [4, 0]]), torch.tensor([True, False])).tolist()
    [[3, -1], [4, -1]]
    """
    return torch.where(mask.to(y.device), y, NULL)


def single_masks(k: int, device: torch.device | str | None = None) -> Tensor:
    """The masks e_1, …, e_k, 0 (k + 1, k) of a composition."""
    check_attributes(k)
    return torch.eye(k + 1, k, dtype=torch.bool, device=device)


def pair_masks(count: int, k: int, generator: torch.Generator) -> Tensor:
    """Masks (4, count, k) of a random pair {i, j} of attributes for each row: e_i + e_j, e_i, e_j, 0.

    All k (k − 1) / 2 pairs are equally likely. On the generator's device.
    """
    if k < 2:
        raise UsageError(f"A pair of attributes needs two of them, but there are {k}. Use the penalty over all.")
    chosen = torch.rand(count, k, generator=generator, device=generator.device).argsort(dim=1)[:, :2]
    first, second = (torch.nn.functional.one_hot(chosen[:, place], k).bool() for place in (0, 1))
    return torch.stack([first | second, first, second, torch.zeros_like(first)])


def check_attributes(k: int) -> None:
    """Refuses a number of attributes that is not a whole number from one."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"A conditional field needs one attribute or more, not {k!r}. Name the attributes.")
