"""Local training: stochastic gradient descent on cross-entropy. Batches are tiny, so each step must be lean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from anabranch.methods.personal._networks import HEAD, scores
from anabranch.methods.personal._settings import Descent


def descend(
    network: dict[str, Tensor],
    names: Sequence[str],
    x: Tensor,
    label: Tensor,
    orders: Iterable[Tensor],
    rule: Descent,
) -> None:
    """Trains the named parameters, an epoch for each order of the points; the others stay as they are, to the bit."""
    trained = {name: network[name].clone().requires_grad_() for name in names}
    moving = {**network, **trained}
    leaves = list(trained.values())
    weights = [tensor for name, tensor in trained.items() if name.endswith("weight")]
    biases = [tensor for name, tensor in trained.items() if name.endswith("bias")]
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": rule.weight_decay}, {"params": biases}]
    optimizer = torch.optim.SGD(
        groups,
        lr=rule.rate,
        momentum=rule.momentum,
        fused=True,  # one pass over parameters, gradients and momentum
    )
    for order in orders:
        for rows, targets in _batches(x, label, order, rule.batch):
            loss = functional.cross_entropy(scores(moving, rows), targets)
            for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                leaf.grad = gradient
            optimizer.step()
    network.update({name: tensor.detach() for name, tensor in trained.items()})


@torch.no_grad()
def fit_head(
    head: Mapping[str, Tensor], features: Tensor, label: Tensor, orders: Iterable[Tensor], rule: Descent
) -> dict[str, Tensor]:
    """The head after an epoch for each order, with the body frozen: the same descent, given the points' features.

    A head on fixed features is softmax regression. Its gradient (p − y)ᵀ[f, 1] is one product, several times faster
    than the general way; weight and bias are one matrix here, and the momentum is gathered inside the product.
    """
    matrix = torch.cat([head[HEAD[0]], head[HEAD[1]][:, None]], dim=1)
    pace = torch.zeros_like(matrix)
    weight, weight_pace = matrix[:, :-1], pace[:, :-1]
    extended = functional.pad(features, (0, 1), value=1.0)
    truth = functional.one_hot(label, len(matrix)).to(features.dtype)
    for order in orders:
        for rows, targets in _batches(extended, truth, order, rule.batch):
            error = torch.softmax(rows @ matrix.T, dim=1).sub_(targets)
            pace.addmm_(error.T, rows, beta=rule.momentum, alpha=1 / len(rows))
            if rule.weight_decay:
                weight_pace.add_(weight, alpha=rule.weight_decay)
            matrix.add_(pace, alpha=-rule.rate)
    return dict(zip(HEAD, (matrix[:, :-1].clone(), matrix[:, -1].clone()), strict=True))


def _batches(x: Tensor, y: Tensor, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All points in that order; the last batch may be smaller. Sorting once an epoch is cheaper than once a batch."""
    order = order.to(x.device)
    return zip(torch.split(x[order], size), torch.split(y[order], size), strict=True)
