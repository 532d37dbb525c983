"""Training steps of one learner. On a GPU they are recorded once and replayed: launching costs more than computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from anabranch.federation import Silo
from anabranch.flow.conditioning import Field
from anabranch.methods.experts._training import Example, Learner, Losses, losses

WARM_UP = 3  # steps before recording, in which the libraries choose and allocate
KEPT = "experts/steps"  # where a silo keeps its steps, in its cache
Slopes = tuple[Tensor, list[Tensor]]


class Steps:
    """Takes a learner down the gradient of matching + λ · independence, batch by batch.

    `field` makes a field of parameters. All batches must have one shape; what is recorded refers to the learner's own
    tensors, which are changed in place.
    """

    def __init__(self, learner: Learner, field: Callable[[Mapping[str, Tensor]], Field], penalty: float) -> None:
        self.learner, self.penalty = learner, penalty
        self.leaves = list(learner.parameters.values())
        self.field = field
        self._recorded: _Recorded | None = None
        self._taken = 0

    @staticmethod
    def of(silo: Silo, learner: Learner, field: Callable[[Mapping[str, Tensor]], Field], penalty: float) -> Steps:
        """The silo's steps with a learner that stands where this one does; what was recorded before is used again."""
        kept = silo.cache.get(KEPT)
        if not isinstance(kept, Steps) or kept.penalty != penalty:
            kept = silo.cache[KEPT] = Steps(learner, field, penalty)
        elif kept.learner is not learner:
            kept.learner.load("at", learner.state("at"))
            kept.learner.optimizer.settings, kept.learner.average.decay = (
                learner.optimizer.settings,
                learner.average.decay,
            )
        return kept

    def take(self, batch: Example) -> Losses:
        """One step; the losses before it."""
        recordable = batch.x_t.is_cuda and self._taken >= WARM_UP
        if recordable and self._recorded is None:
            self._recorded = _Recorded(self._slopes, batch)
        values, slopes = self._recorded(batch) if self._recorded is not None else self._slopes(batch)
        self.learner.follow(dict(zip(self.learner.parameters, slopes, strict=True)))
        self._taken += 1
        return Losses(values[0].clone(), values[1].clone())

    def _slopes(self, batch: Example) -> Slopes:
        found = losses(self.field(self.learner.parameters), batch)
        slopes = torch.autograd.grad(found.matching + self.penalty * found.independence, self.leaves)
        return torch.stack([found.matching, found.independence]).detach(), list(slopes)


class _Recorded:
    """A computation as a CUDA graph, which reads its batch from fixed tensors."""

    def __init__(self, compute: Callable[[Example], Slopes], batch: Example) -> None:
        self.names = [f.name for f in fields(Example) if isinstance(getattr(batch, f.name), Tensor)]
        self.batch = replace(batch, **{name: getattr(batch, name).clone() for name in self.names})
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute(self.batch)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.values, self.slopes = compute(self.batch)

    def __call__(self, batch: Example) -> Slopes:
        for name in self.names:
            getattr(self.batch, name).copy_(getattr(batch, name))
        self.graph.replay()
        return self.values, self.slopes
