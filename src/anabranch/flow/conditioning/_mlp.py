"""Conditional velocity networks for points: all attributes at once, or one term an attribute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anabranch.errors import unknown
from anabranch.flow._networks import _stack, register_network
from anabranch.flow.conditioning._embedding import AttributeEmbedding
from anabranch.flow.conditioning._evaluate import AdditiveField

ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "selu": nn.SELU}


@register_network("conditional-mlp")
class ConditionalMLP(nn.Module):
    """A velocity v(x, t, y): `layers` hidden layers of `hidden` units on x, t and each attribute's embedding.

    `forward(x, t, y)`: x (n, d), t (n,) or a single time, y (n, k) codes below `sizes`, NULL where not given; returns
    (n, d). Nothing depends on the values of y but the rows looked up, so it can be mapped over stacked parameters.
    """

    def __init__(
        self,
        dimension: int,
        sizes: Sequence[int],
        hidden: int = 64,
        layers: int = 3,
        embedding: int = 16,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        unit = _unit(activation)
        self.embedding = AttributeEmbedding(sizes, embedding)
        self.stack = _stack(dimension + 1 + len(sizes) * embedding, hidden, layers, dimension, unit)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        told = self.embedding(y).flatten(start_dim=-2)
        velocity: Tensor = self.stack(torch.cat([_timed(x, t), told], dim=-1))
        return velocity


@register_network("additive-mlp")
class AdditiveMLP(AdditiveField):
    """A velocity c(x, t) + Σ_{i given} d_i(x, t, y_i), each term a stack like that of `ConditionalMLP`.

    d_i sees the embedding of y_i, and no other; c sees x and t alone.
    """

    def __init__(
        self,
        dimension: int,
        sizes: Sequence[int],
        hidden: int = 64,
        layers: int = 3,
        embedding: int = 16,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        unit = _unit(activation)
        self.embedding = AttributeEmbedding(sizes, embedding)
        self.base = _stack(dimension + 1, hidden, layers, dimension, unit)
        self.effects = nn.ModuleList(_stack(dimension + 1 + embedding, hidden, layers, dimension, unit) for _ in sizes)

    def parts(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        timed = _timed(x, t)
        terms = [self.base(timed)]
        for i, effect in enumerate(self.effects):
            code = y[..., i]
            term = effect(torch.cat([timed, self.embedding.look_up(i, code)], dim=-1))
            terms.append(torch.where((code < 0).unsqueeze(-1), 0, term))
        return torch.stack(terms)


def _unit(activation: str) -> type[nn.Module]:
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]


def _timed(x: Tensor, t: Tensor) -> Tensor:
    """x (n, d) with the time as its last column."""
    return torch.cat([x, t.to(x.dtype).expand(x.shape[:-1]).unsqueeze(-1)], dim=-1)
