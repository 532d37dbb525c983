"""Training steps of one learner. On a GPU a step is recorded once and replayed: launching costs more than computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from anabranch.federation import Silo
from anabranch.flow import attempt
from anabranch.methods.experts._training import Learner, Losses, Measured

WARM_UP = 3  # steps before recording, in which the libraries choose and allocate
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
        # Recorded on a stream of its own: products of matrices get their workspace by stream, and steps that share one
        # must not run side by side.
        self.stream = torch.cuda.Stream(self.leaves[0].device) if self.leaves[0].is_cuda else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._last: Measured | None = None
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

    def take(self) -> Measured:
        """One step; the losses before it."""
        self.learner.aim()
        if self.leaves[0].is_cuda and self._taken >= WARM_UP and self._graph is None:
            self._record()
        if self._graph is None:
            self._last = self._step()
        else:
            self._graph.replay()
        self.learner.count()
        self._taken += 1
        assert self._last is not None
        found = self._last.losses
        copied = Losses(found.matching.clone(), found.independence.clone())  # the next step writes over these
        return Measured(copied, self._last.forward, self._last.backward)

    def _step(self) -> Measured:
        found, slopes = attempt(self.network, self._slopes)
        self.learner.move(dict(zip(self.learner.parameters, slopes, strict=True)))
        values = Losses(found.losses.matching.detach(), found.losses.independence.detach())
        return Measured(values, found.forward, found.backward)

    def _slopes(self) -> tuple[Measured, Sequence[Tensor]]:
        found = self.measure(self.learner.parameters, self.generator)
        loss = found.losses.matching + self.penalty * found.losses.independence
        return found, torch.autograd.grad(loss, self.leaves)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            self._last = self._step()
        self._graph = graph


def side_by_side(steps: Sequence[Steps], count: int) -> list[list[Measured]]:
    """So many steps of each. On a GPU they run at once: one alone is a row of kernels too small to fill it.

    Each is recorded first, one after the other, because nothing else may run while a graph is recorded.
    """
    found: list[list[Measured]] = [[] for _ in steps]
    alone = count if not steps[0].leaves[0].is_cuda else min(count, WARM_UP + 1)
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
