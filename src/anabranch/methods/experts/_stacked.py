"""Experts of equal shape trained side by side: their parameters stacked, one pass for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from anabranch.federation import Silo
from anabranch.methods.experts._half import ExpertHalf
from anabranch.methods.experts._training import Example, Learner, example, losses


def can_stack(halves: Sequence[ExpertHalf]) -> bool:
    """Whether one pass serves all faster than passes in turn do: for small dense networks trained alike.

    Convolutions would become grouped ones, which are slower; a clip needs each expert's own norm; and a batch of which
    a part is compared has two shapes.
    """
    first = halves[0]
    return (
        len(halves) > 1
        and not first.settings.network.endswith("unet")
        and first.settings.clip == 0
        and first.settings.compared == 1
        and all(h.settings == first.settings and h.space == first.space for h in halves)
        and len({h.x.device for h in halves}) == 1
    )


def train_stacked(
    silos: Sequence[Silo], halves: Sequence[ExpertHalf], learners: Sequence[Learner], steps: int, weights: Tensor
) -> tuple[float, float, float, float]:
    """Trains all learners for so many steps, each on its own silo's samples with its own random numbers.

    Gives the weighted means of both losses, and the passes of a batch, forward and backward, that a step takes.
    """
    first = halves[0]
    together = Stack(learners)
    leaves = list(together.learner.parameters.values())
    generators = [silo.generator("experts", device=first.x.device) for silo in silos]
    found, rows = [], 0
    for _ in range(steps):
        work = zip(halves, generators, strict=True)
        batches = [example(half.x, half.codes, half.settings, generator) for half, generator in work]
        values = _losses(first, together.learner.parameters, batches)
        # Each loss knows its own expert alone, so the gradient of their sum holds the gradient of each.
        slopes = torch.autograd.grad((values[:, 0] + first.settings.penalty * values[:, 1]).sum(), leaves)
        together.learner.follow(dict(zip(together.learner.parameters, slopes, strict=True)))
        found.append(values.detach())
        rows = len(batches[0].masks)
    together.hand_back()
    means = (torch.stack(found).double().mean(0).cpu() * weights.double()[:, None]).sum(0)
    return float(means[0]), float(means[1]), float(rows), float(rows)


def _losses(half: ExpertHalf, parameters: Mapping[str, Tensor], batches: Sequence[Example]) -> Tensor:
    """Both losses (silos, 2) of every expert on its own batch."""
    gap = batches[0].gap

    def one(own: dict[str, Tensor], x_t: Tensor, u_t: Tensor, t: Tensor, y: Tensor, masks: Tensor) -> Tensor:
        def field(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
            value: Tensor = functional_call(half.network, own, (x, t, y), tie_weights=False)
            return value

        both = losses(field, Example(x_t, u_t, t, y, masks, batches[0].weight, gap, batches[0].late))
        return torch.stack([both.matching, both.independence])

    parts = [torch.stack([getattr(batch, f.name) for batch in batches]) for f in fields(Example)[:5]]
    values: Tensor = vmap(one)(dict(parameters), *parts)
    return values


class Stack:
    """Learners of equal shape as one, whose tensors have them along a first side."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = learners
        first = learners[0]
        blank = {name: torch.stack([tensor.detach()] * len(learners)) for name, tensor in first.parameters.items()}
        self.learner = Learner(blank, first.optimizer.settings, first.average.decay)
        states = [learner.state("one") for learner in learners]
        self.learner.load("one", {name: _stacked(name, [state[name] for state in states]) for name in states[0]})

    def hand_back(self) -> None:
        """Gives every learner its own part."""
        state = self.learner.state("one")
        for number, learner in enumerate(self.learners):
            learner.load("one", {name: t if _counts(name) else t[number] for name, t in state.items()})


def _stacked(name: str, tensors: list[Tensor]) -> Tensor:
    return tensors[0] if _counts(name) else torch.stack(tensors)


def _counts(name: str) -> bool:
    """Whether a tensor of a learner's state counts steps, which all have taken together."""
    return name.endswith(("/steps", "/step", "/count"))
