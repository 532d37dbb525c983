"""One training step of a conditional flow: flow matching on masked labels, and conditional independence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.federation import OptimizerState, ServerOptimizer
from anabranch.flow import LinearPath, MovingAverage
from anabranch.flow.conditioning import (
    Field,
    Masking,
    all_masks,
    masked,
    masked_penalty,
    pair_masks,
    stacked,
    weights_on,
)
from anabranch.methods.experts._settings import ExpertSettings


@dataclass(frozen=True)
class Example:
    """A batch: points x_t (n, d) with velocities u_t, times t (n,), labels y (n, k), and masks for them.

    `masks` are (m, k), or (m, n, k) where they differ from row to row; `weight` (m,) says how much the loss looks at
    each. The penalty is about the last `gap` of them: a joint label, its single attributes, and none; 0 leaves it out.
    It counts t^`late` at time t. `rest` (r, k) are masks of the last r rows, which are evaluated under these alone.
    """

    x_t: Tensor
    u_t: Tensor
    t: Tensor
    y: Tensor
    masks: Tensor
    weight: Tensor
    gap: int
    late: float = 0.0
    rest: Tensor | None = None

    @property
    def passes(self) -> float:
        """How many times a row is evaluated, on average."""
        rest = 0 if self.rest is None else len(self.rest)
        return len(self.masks) - (len(self.masks) - 1) * rest / len(self.x_t)


@dataclass(frozen=True)
class Losses:
    """Flow matching (eq. 9) and conditional independence (eq. 10), as means over all entries."""

    matching: Tensor
    independence: Tensor


@dataclass(frozen=True)
class Measured:
    """Losses of a step, and the passes of a batch that it took."""

    losses: Losses
    forward: float
    backward: float


def example(x1: Tensor, codes: Tensor, settings: ExpertSettings, generator: torch.Generator) -> Example:
    """A batch of the silo's samples at random times, with the masks that the settings ask for."""
    device = generator.device
    index = torch.randint(len(x1), (settings.batch,), generator=generator, device=device).to(x1.device)
    chosen, y = x1[index], codes[index]
    x0 = torch.randn(chosen.shape, generator=generator, dtype=x1.dtype, device=device).to(x1.device)
    t = torch.rand(len(chosen), generator=generator, dtype=x1.dtype, device=device).to(x1.device)
    sample = LinearPath().sample(x0, chosen, t)
    shown = shown_attributes(y, settings, settings.masking, settings.penalty > 0, generator)
    weight = shown.weight.to(x1.dtype)
    return Example(sample.x_t, sample.u_t, t, y, shown.masks, weight, shown.gap, settings.late, shown.rest)


@dataclass(frozen=True)
class Shown:
    """Masks, their weights in the loss, how many of the last ones the penalty is about, and masks of other rows."""

    masks: Tensor
    weight: Tensor
    gap: int
    rest: Tensor | None = None


def shown_attributes(
    y: Tensor, settings: ExpertSettings, masking: Masking, penalised: bool, generator: torch.Generator
) -> Shown:
    """Which attributes a batch with labels y (n, k) shows.

    Without a penalty every sample draws its own mask. With one, a share of them is evaluated under all masks: the same
    loss without the noise of drawing, at no extra cost, because the penalty needs these evaluations anyway.
    """
    count, k = y.shape
    if not penalised:
        drawn = masking.draw(count, k, generator)[None].to(y.device)
        return Shown(drawn, torch.ones(1, device=y.device), 0)
    compared = max(1, round(settings.compared * count))
    rest = masking.draw(count - compared, k, generator).to(y.device) if compared < count else None
    if settings.independence == "pairs" and k > 2:
        pairs = pair_masks(compared, k, generator).to(y.device)
        weight = weights_on(y.device, *masking.pairs())
        return Shown(torch.cat([torch.ones_like(pairs[:1]), pairs]), weight, 4, rest)
    masks, weight = masking.masks(k, y.device)
    return Shown(masks, weight, k + 2, rest)


def measured(field: Field, batch: Example) -> Measured:
    """The losses of a batch, with one pass a mask."""
    return Measured(losses(field, batch), batch.passes, batch.passes)


def losses(field: Field, batch: Example) -> Losses:
    """Both losses in one pass over all masks."""
    if batch.rest is None:
        values = all_masks(field, batch.x_t, batch.t, batch.y, batch.masks)
        return _losses(values, batch.u_t, batch.t, batch)
    first, count = len(batch.x_t) - len(batch.rest), len(batch.x_t)
    x, u, t, y = batch.x_t, batch.u_t, batch.t, batch.y
    rows = stacked(x[:first], t[:first], y[:first], batch.masks)
    others = (x[first:], t[first:], masked(y[first:], batch.rest))
    values = field(*(torch.cat(both) for both in zip(rows, others, strict=True)))
    compared = values[: len(rows[0])].reshape(len(batch.masks), first, -1)
    found = _losses(compared, u[:first], t[:first], batch)
    error = (values[len(rows[0]) :] - u[first:]).square().mean()
    share = first / count
    return Losses(share * found.matching + (1 - share) * error, found.independence)


def _losses(values: Tensor, u: Tensor, t: Tensor, batch: Example) -> Losses:
    """Both losses of rows evaluated under all masks, (m, n, d)."""
    matching = (batch.weight * (values - u).square().flatten(1).mean(1)).sum()
    if not batch.gap:
        return Losses(matching, torch.zeros_like(matching))
    return Losses(matching, masked_penalty(values[-batch.gap :], t**batch.late if batch.late else None))


class Learner:
    """Parameters on their way: Adam, and the moving average that becomes the expert."""

    def __init__(self, parameters: Mapping[str, Tensor], rule: ServerOptimizer, decay: float) -> None:
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in parameters.items()}
        self.optimizer: OptimizerState = rule.begin(leaves)
        self.average = MovingAverage(leaves, decay)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """θ, which gradients are taken by."""
        return self.optimizer.parameters

    def follow(self, slopes: dict[str, Tensor]) -> None:
        """One step against these gradients."""
        self.aim()
        self.move(slopes)
        self.count()

    def aim(self) -> None:
        """Sets what the next move needs to know: its rate, and how much of it is averaged."""
        self.optimizer.aim()
        self.average.aim()

    def move(self, slopes: dict[str, Tensor]) -> None:
        """The arithmetic of a step, which can be recorded as a CUDA graph."""
        self.optimizer.move(slopes)
        self.average.blend(self.parameters)

    def count(self) -> None:
        """Notes that a step was taken."""
        self.optimizer.steps += 1
        self.average.count += 1

    def state(self, prefix: str) -> dict[str, Tensor]:
        """All that `load` needs."""
        average = {f"{prefix}/average/{name}": tensor for name, tensor in self.average.state().items()}
        return {**self.optimizer.state(f"{prefix}/flow"), **average}

    def load(self, prefix: str, state: Mapping[str, Tensor]) -> None:
        """Goes on from a state, to the bit."""
        self.optimizer.load(f"{prefix}/flow", dict(state))
        start = f"{prefix}/average/"
        self.average.load({n.removeprefix(start): t for n, t in state.items() if n.startswith(start)})
