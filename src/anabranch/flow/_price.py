"""What a network costs, counted on tensors without numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RowCost:
    """What one row costs in one forward pass: numbers held, multiplications; and the network's parameters."""

    numbers: int
    work: int
    parameters: int


def price_of_row(module: nn.Module, *inputs: Tensor) -> RowCost:
    """The price of one row of inputs; the module itself is of no use afterwards.

    >>> price_of_row(nn.Linear(3, 5, bias=False), torch.zeros(1, 3))
    RowCost(numbers=8, work=15, parameters=15)
    """
    from torch.utils.flop_counter import FlopCounterMode

    parameters = sum(p.numel() for p in module.parameters())
    held = 0

    def note(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal held
        held += output.numel() if isinstance(output, Tensor) else 0

    module = module.to("meta")
    hooks = [layer.register_forward_hook(note) for layer in module.modules() if not list(layer.children())]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*(value.to("meta") for value in inputs))
    for hook in hooks:
        hook.remove()
    return RowCost(held + inputs[0].numel(), counter.get_total_flops() // 2, parameters)
