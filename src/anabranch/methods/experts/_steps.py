"""Training steps of one learner. On a GPU a step is recorded once and replayed: launching costs more than computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from anabranch.federation import Silo
from anabranch.flow import Recorded, attempt
from anabranch.methods.experts._training import Learner, Losses, Measured

KEPT = "experts/steps"  # where a silo keeps its steps, in its cache
Measure = Callable[[Mapping[str, Tensor], torch.Generator], Measured]


class Steps:
    """Takes a learner down the gradient of matching + λ · independence.

    `measure` draws a batch and gives the losses of parameters on it; all batches have one shape. What is recorded
    refers to the learner's own tensors, which are changed in place, and to the random numbers of `generator`, which go
    on; whatever else `measure` reads must stay where it lies. `network` is the one that `measure` evaluates.
    """

    def __init__(
        self, network: nn.Module, learner: Learner, measure: Measure, penalty: float, generator: torch.Generator
    ) -> None:
        self.network, self.learner, self.measure = network, learner, measure
        self.penalty, self.generator = penalty, generator
        self.leaves = list(learner.parameters.values())
        self._recorded = Recorded[Measured](self.leaves[0].device, [generator])

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """Where its work may run beside that of others; None on a CPU."""
        return self._recorded.stream

    @staticmethod
    def of(silo: Silo, fresh: Steps) -> Steps:
        """The silo's own steps, standing where fresh ones would; what was recorded before is used again."""
        kept = silo.cache.get(KEPT)
        if not isinstance(kept, Steps) or kept.penalty != fresh.penalty:
            silo.cache[KEPT] = fresh
            return fresh
        kept.learner.load("at", fresh.learner.state("at"))
        kept.learner.optimizer.settings = fresh.learner.optimizer.settings
        kept.learner.average.decay = fresh.learner.average.decay
        kept.generator.set_state(fresh.generator.get_state())
        return kept

    def take(self) -> Measured:
        """One step; the losses before it."""
        self.learner.aim()
        last = self._recorded(self._step)
        self.learner.count()
        found = last.losses
        copied = Losses(found.matching.clone(), found.independence.clone())  # the next step writes over these
        return Measured(copied, last.forward, last.backward)

    def _step(self) -> Measured:
        found, slopes = attempt(self.network, self._slopes)
        self.learner.move(dict(zip(self.learner.parameters, slopes, strict=True)))
        values = Losses(found.losses.matching.detach(), found.losses.independence.detach())
        return Measured(values, found.forward, found.backward)

    def _slopes(self) -> tuple[Measured, Sequence[Tensor]]:
        found = self.measure(self.learner.parameters, self.generator)
        loss = found.losses.matching + self.penalty * found.losses.independence
        return found, torch.autograd.grad(loss, self.leaves)


def side_by_side(steps: Sequence[Steps], count: int) -> list[list[Measured]]:
    """So many steps of each. On a GPU they run at once: one alone is a row of kernels too small to fill it.

    Each is recorded first, one after the other, because nothing else may run while a graph is recorded.
    """
    found: list[list[Measured]] = [[] for _ in steps]
    alone = count if not steps[0].leaves[0].is_cuda else min(count, Recorded.warm_up + 1)
    for place, one in enumerate(steps):
        found[place] += [one.take() for _ in range(alone)]
    if alone < count:
        torch.cuda.synchronize()
        for _ in range(count - alone):
            for place, one in enumerate(steps):
                with torch.cuda.stream(one.stream):
                    found[place].append(one.take())
        torch.cuda.synchronize()
    return found
