"""Training steps of one learner. On a GPU a step is recorded once and replayed: launching costs more than computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from anabranch.federation import Silo
from anabranch.flow.conditioning import Field
from anabranch.methods.experts._training import Example, Learner, Losses, losses

WARM_UP = 3  # steps before recording, in which the libraries choose and allocate
KEPT = "experts/steps"  # where a silo keeps its steps, in its cache
Draw = Callable[[torch.Generator], Example]


class Steps:
    """Takes a learner down the gradient of matching + λ · independence.

    `field` makes a field of parameters, `draw` a batch; all batches have one shape. What is recorded refers to the
    learner's own tensors, which are changed in place, and to the random numbers of `generator`, which go on.
    """

    def __init__(
        self,
        learner: Learner,
        field: Callable[[Mapping[str, Tensor]], Field],
        penalty: float,
        draw: Draw,
        generator: torch.Generator,
    ) -> None:
        self.learner, self.field, self.penalty, self.draw, self.generator = learner, field, penalty, draw, generator
        self.leaves = list(learner.parameters.values())
        self.passes = 0  # of a batch, that a step takes
        self._graph: torch.cuda.CUDAGraph | None = None
        self._values = torch.zeros(2)
        self._taken = 0

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

    def take(self) -> Losses:
        """One step; the losses before it."""
        self.learner.aim()
        if self.leaves[0].is_cuda and self._taken >= WARM_UP and self._graph is None:
            self._record()
        if self._graph is None:
            self._values = self._step()
        else:
            self._graph.replay()
        self.learner.count()
        self._taken += 1
        return Losses(*self._values.clone())

    def _step(self) -> Tensor:
        batch = self.draw(self.generator)
        self.passes = len(batch.masks)
        found = losses(self.field(self.learner.parameters), batch)
        slopes = torch.autograd.grad(found.matching + self.penalty * found.independence, self.leaves)
        self.learner.move(dict(zip(self.learner.parameters, slopes, strict=True)))
        return torch.stack([found.matching, found.independence]).detach()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self._values = self._step()
        self._graph = graph


def side_by_side(steps: Sequence[Steps], count: int) -> list[list[Losses]]:
    """So many steps of each. On a GPU they run at once: one alone is a row of kernels too small to fill it.

    Each is recorded first, one after the other, because nothing else may run while a graph is recorded.
    """
    found: list[list[Losses]] = [[] for _ in steps]
    alone = count if not steps[0].leaves[0].is_cuda else min(count, WARM_UP + 1)
    for place, one in enumerate(steps):
        found[place] += [one.take() for _ in range(alone)]
    if alone < count:
        streams = [torch.cuda.Stream() for _ in steps]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for _ in range(count - alone):
            for place, one in enumerate(steps):
                with torch.cuda.stream(streams[place]):
                    found[place].append(one.take())
        torch.cuda.synchronize()
    return found
