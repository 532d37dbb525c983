"""The silo half: what a silo answers while a flow is trained. It never sees another silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anabranch.coupling import Independent
from anabranch.errors import RefusedError
from anabranch.federation import Done, Silo, answers, answers_together
from anabranch.flow import PathSample, attempt
from anabranch.methods.ffm._draws import draw
from anabranch.methods.ffm._half import (
    FlowHalf,
    build,
    cost_of_step,
    gradients,
    half_of,
    load_parameters,
    named_parameters,
)
from anabranch.methods.ffm._messages import Gradient, GradientReply, Histograms, HistogramsReply, LocalSteps, Prepare
from anabranch.methods.ffm._semidiscrete import table
from anabranch.methods.ffm._shares import spread
from anabranch.metrics import projection_counts

PASS = 4096  # rows of one pass on a CPU: more spill out of its cache


@answers(Prepare)
def prepare(silo: Silo, question: Prepare) -> Done:
    """Builds the silo's half."""
    half = build(silo, question)
    if half.settings.coupling.name == "semidiscrete":
        half.coupling = table(silo, half)
    silo.cache["ffm"] = half
    return Done()


def _load(half: FlowHalf, question: Gradient | LocalSteps) -> None:
    load_parameters(half.field, question.parameters)
    _load_potential(half, question)


def _load_potential(half: FlowHalf, question: Gradient | LocalSteps) -> None:
    if question.potential and half.potential is not None:
        load_parameters(half.potential, question.potential)


def _squared_error(half: FlowHalf, sample: PathSample) -> Tensor:
    return (half.velocity(*sample.inputs) - sample.u_t).square()


@answers(Gradient)
def gradient(silo: Silo, question: Gradient) -> GradientReply:
    """∇_θ ‖v_θ(x_t, t) − u_t‖² on one batch of the silo's own pairs (FFM, Algorithms 1–3)."""
    half = half_of(silo)
    _load(half, question)
    return _gradient(half, half.example(silo), silo.seed, silo.name, silo.round)


def _gradient(half: FlowHalf, sample: PathSample, *names: str | int) -> GradientReply:
    """∇ of the mean squared error; dropout follows from the names."""

    def compute() -> GradientReply:
        with half.dropout(*names):
            if half.settings.flow.passes > 1:
                return _weighted_gradient(half, sample, torch.full_like(sample.x_t[:, 0], 1 / sample.x_t.numel()))
            loss = _squared_error(half, sample).mean()
        return GradientReply(gradients(loss, half.field), loss.detach())

    return attempt(half.field, compute)


@answers_together(Gradient)
def gradient_together(silos: Sequence[Silo], question: Gradient, weights: Tensor) -> GradientReply:
    """The same for many silos: their batches side by side in one forward and backward pass, rows weighted by λ."""
    halves = [half_of(silo) for silo in silos]
    load_parameters(halves[0].field, question.parameters)
    for half in halves:
        _load_potential(half, question)
    sample = _examples(silos, halves)
    each = weights / sample.x_t[0].numel() / halves[0].settings.flow.batch
    rows = spread(each, len(sample.t) // len(silos), sample.x_t)

    def compute() -> GradientReply:
        with halves[0].dropout(silos[0].seed, "together", silos[0].name, silos[0].round):
            return _weighted_gradient(halves[0], sample, rows, together=True)

    return attempt(halves[0].field, compute)


def _weighted_gradient(half: FlowHalf, sample: PathSample, weights: Tensor, together: bool = False) -> GradientReply:
    """∇ of Σ_n w_n ‖v(x_n, t_n) − u_n‖², summed over the passes asked for, each of which fits a CPU's cache."""
    size = -(-len(weights) // half.settings.flow.passes)
    size = size if weights.is_cuda else min(size, PASS)
    total: list[Tensor] = []
    loss = weights.new_zeros(())
    named = named_parameters(half.field)
    for start in range(0, len(weights), size):
        part = slice(start, start + size)
        value, found = half.descent(sample[part], weights[part], together)
        loss = loss + value
        if total:
            torch._foreach_add_(total, list(found))
        else:
            total = list(found)
    return GradientReply(dict(zip(named, total, strict=True)), loss)


@answers(LocalSteps)
def local_steps(silo: Silo, question: LocalSteps) -> GradientReply:
    """θ less what E local Adam steps make of it, as a pseudo-gradient; the first step's loss."""
    half = half_of(silo)
    cost = cost_of_step(half.settings, half.data.dimension, half.weight)
    silo.affords(f"{question.steps} local steps", work=question.steps * cost.work)
    _load(half, question)
    load_parameters(half.field, {name: tensor.clone() for name, tensor in question.parameters.items()})
    optimizer = torch.optim.Adam(half.field.parameters(), lr=question.rate)
    first = torch.tensor(0.0)
    for step in range(question.steps):
        found = _gradient(half, half.example(silo, step), silo.seed, silo.name, silo.round, step)
        first = found.loss if step == 0 else first
        for name, parameter in half.field.named_parameters():
            parameter.grad = found.gradients[name]
        optimizer.step()
    moved = {name: p.detach() for name, p in half.field.named_parameters()}
    return GradientReply({name: question.parameters[name] - moved[name] for name in moved}, first)


@answers(Histograms)
def histograms(silo: Silo, question: Histograms) -> HistogramsReply:
    """Counts of held-out points, never of training points."""
    if silo.held_out is None:
        raise RefusedError(f"Silo '{silo.name}' holds no points out; set data.held_out to more than zero.")
    silo.rests_on(len(silo.held_out))
    lines = question.directions.numel() // max(1, silo.held_out.shape[1])
    silo.affords(f"histograms along {lines} directions", numbers=lines * len(silo.held_out))
    return HistogramsReply(projection_counts(silo.held_out, question.directions, question.edges))


def _examples(silos: Sequence[Silo], halves: Sequence[FlowHalf]) -> PathSample:
    """Every silo's batch, one below the other, with the same numbers as each silo would draw alone."""
    first = halves[0]
    if isinstance(first.coupling, Independent) and first.path.deterministic and not first.settings.flow.classes:
        size = first.settings.flow.batch
        for silo in silos:
            silo.rests_on(min(size, len(silo)))
        generators = [silo.generator("batch", 0, device=half.device) for silo, half in zip(silos, halves, strict=True)]
        x0, x1 = first.coupling.draw_together([half.data for half in halves], first.source, size, generators)
        return first.path.sample(x0, x1, first.times(size, generators).to(x1.device))
    drawn = draw(silos, halves)
    if first.path.deterministic:  # then the path itself draws nothing, and one call serves all
        x0, x1 = torch.cat([one.pairs.x0 for one in drawn]), torch.cat([one.pairs.x1 for one in drawn])
        generators = [one.generator for one in drawn]
        times = first.times(len(drawn[0].pairs), generators)
        sample = first.path.sample(x0, x1, times.to(x1.device))
        labels, least = torch.cat([one.pairs.label for one in drawn]), [silo.smallest_group for silo in silos]
        return replace(sample, y=first.told(labels, generators, least))
    each = zip(silos, drawn, strict=True)
    samples = [first.between(one.pairs, one.generator, silo.smallest_group).parts for silo, one in each]
    return PathSample(*(torch.cat(parts) for parts in zip(*samples, strict=True)))
