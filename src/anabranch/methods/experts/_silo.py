"""The silo half: counts its combinations, trains an expert on its own samples, and shares it when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import DataError, RefusedError, UsageError
from anabranch.federation import STEP, Done, Silo, answers, answers_together, same_shapes
from anabranch.methods.experts._half import (
    STATE,
    ExpertHalf,
    build,
    cost_of_row,
    expert_of,
    half_of,
    learner_of,
    own_space,
    settings_from_json,
    start,
)
from anabranch.methods.experts._messages import (
    Expert,
    LocalSteps,
    LocalStepsReply,
    Prepare,
    Restore,
    Share,
    Survey,
    SurveyReply,
    Train,
    TrainReply,
)
from anabranch.methods.experts._stacked import can_stack, train_stacked
from anabranch.methods.experts._steps import Steps, side_by_side
from anabranch.methods.experts._training import Learner, Measured, example, measured


@answers(Survey)
def survey(silo: Silo, question: Survey) -> SurveyReply:
    """Counts by combination; those that rest on too few samples are given as none."""
    silo.rests_on(len(silo))
    space = own_space(silo, AttributeSpace.from_json(question.space) if question.space else None)
    counts = torch.bincount(silo.data.label.cpu(), minlength=len(space))
    shape = torch.tensor(silo.shape) if silo.shape else None
    return SurveyReply(space.to_json(), torch.where(counts < silo.smallest_group, 0, counts), shape)


@answers(Prepare)
def prepare(silo: Silo, question: Prepare) -> Done:
    """Builds the silo's half."""
    silo.rests_on(len(silo))
    space = AttributeSpace.from_json(question.space)
    silo.cache[STATE] = build(silo, settings_from_json(question.settings), space)
    return Done()


@answers(Train)
def train(silo: Silo, question: Train) -> TrainReply:
    """Stage I (DCFM, eq. 9–11): the silo's own expert, some steps further."""
    half = half_of(silo)
    check_steps(silo, half, question.steps)
    learner = learner_of(silo, half, question.of)
    if learner.optimizer.steps != question.done:
        raise UsageError(
            f"Silo '{silo.name}' has trained for {learner.optimizer.steps} steps, not for {question.done}."
        )
    tally, steps = Tally(), Steps.of(silo, steps_of(silo, half, learner))
    for _ in range(question.steps):
        tally.add(steps.take())
    keep_expert(silo, steps.learner)
    return TrainReply(*tally.means())


@answers_together(Train)
def train_together(silos: Sequence[Silo], question: Train, weights: Tensor) -> TrainReply:
    """The same for many silos at once, where that is faster: stacked in one pass, or side by side on a GPU."""
    halves = [half_of(silo) for silo in silos]
    for silo, half in zip(silos, halves, strict=True):
        check_steps(silo, half, question.steps)
    learners = [learner_of(silo, half, question.of) for silo, half in zip(silos, halves, strict=True)]
    if can_stack(halves):
        numbers = train_stacked(silos, halves, learners, question.steps, weights)
    else:
        steps, tallies = _at_once(silos, halves, learners, question.steps)
        learners = [one.learner for one in steps]
        numbers = _weighted(weights, tallies)
    found = [state_of(silo, learner) for silo, learner in zip(silos, learners, strict=True)]
    for silo, state in zip(silos, found, strict=True):  # all or none: a silo at fault is found by asking in turn
        silo.state.update(state)
    return TrainReply(*numbers)


def _at_once(
    silos: Sequence[Silo], halves: Sequence[ExpertHalf], learners: Sequence[Learner], count: int
) -> tuple[list[Steps], list[Tally]]:
    """Steps of every silo's learner, at the same time on a GPU; elsewhere nothing is gained, and it is refused."""
    if not halves[0].x.is_cuda:
        raise RefusedError("These experts are trained in turn, not together.")
    each = zip(silos, halves, learners, strict=True)
    steps = [Steps.of(silo, steps_of(silo, half, learner)) for silo, half, learner in each]
    tallies = [Tally() for _ in steps]
    for tally, found in zip(tallies, side_by_side(steps, count), strict=True):
        for one in found:
            tally.add(one)
    return steps, tallies


def _weighted(weights: Tensor, tallies: Sequence[Tally]) -> tuple[float, float, float, float]:
    rows = torch.tensor([tally.means() for tally in tallies], dtype=torch.float64)
    matching, independence, forward, backward = (weights.double()[:, None] * rows).sum(0).tolist()
    return matching, independence, forward, backward


@answers(Share)
def share(silo: Silo, question: Share) -> Expert:
    """The silo's expert."""
    silo.rests_on(len(silo))
    return Expert(expert_of(silo))


@answers(Restore)
def restore(silo: Silo, question: Restore) -> Done:
    """Takes up an expert of an earlier run in place of training one."""
    half = half_of(silo)
    own = start(silo, half)
    same_shapes(question.kind, question.parameters, own)
    given = {name: tensor.to(own[name].device) for name, tensor in question.parameters.items()}
    keep_expert(silo, Learner(given, half.settings.rule(1), half.settings.average))
    return Done()


@answers(LocalSteps)
def local_steps(silo: Silo, question: LocalSteps) -> LocalStepsReply:
    """FedFlow (Tun et al. 2023): shared parameters after some steps on the silo's own samples."""
    half, learner = _from_shared(silo, question)
    tally, steps = Tally(), Steps.of(silo, steps_of(silo, half, learner))
    for _ in range(question.steps):
        tally.add(steps.take())
    moved = {name: tensor.detach().clone() for name, tensor in steps.learner.parameters.items()}
    return LocalStepsReply(moved, *tally.means())


@answers_together(LocalSteps)
def local_steps_together(silos: Sequence[Silo], question: LocalSteps, weights: Tensor) -> LocalStepsReply:
    """The same for many silos on one GPU, side by side."""
    each = [_from_shared(silo, question) for silo in silos]
    steps, tallies = _at_once(silos, [half for half, _ in each], [learner for _, learner in each], question.steps)
    total = {name: torch.zeros_like(tensor) for name, tensor in steps[0].learner.parameters.items()}
    for weight, one in zip(weights.tolist(), steps, strict=True):
        for name, tensor in one.learner.parameters.items():
            total[name] += weight * tensor.detach()
    return LocalStepsReply({name: t.detach() for name, t in total.items()}, *_weighted(weights, tallies))


def _from_shared(silo: Silo, question: LocalSteps) -> tuple[ExpertHalf, Learner]:
    """A learner that begins at the shared parameters."""
    half = half_of(silo)
    check_steps(silo, half, question.steps)
    if not 0 < question.rate < 1e6:
        raise UsageError(f"A rate of {question.rate} was asked for; a rate is a positive number.")
    own = {name: tensor.to(half.x.device) for name, tensor in question.parameters.items()}
    return half, Learner(own, half.settings.steady_rule(question.rate), 0.0)


def steps_of(silo: Silo, half: ExpertHalf, learner: Learner) -> Steps:
    """Steps of a learner on the silo's own samples."""
    settings = half.settings

    def measure(parameters: Mapping[str, Tensor], draws: torch.Generator) -> Measured:
        return measured(half.field(parameters), example(half.x, half.codes, settings, draws))

    return Steps(half.network, learner, measure, settings.penalty, silo.generator("experts", device=half.x.device))


def check_steps(silo: Silo, half: ExpertHalf, steps: int) -> None:
    """Refuses more steps than one question may cost."""
    if steps < 1:
        raise UsageError(f"{steps} training steps were asked for; ask for at least one.")
    silo.rests_on(min(half.settings.batch, len(silo)))
    cost = cost_of_row(half.settings, half.x.shape[1], half.space.sizes)
    rows = half.settings.batch * (half.space.k + 2)
    work = STEP + 3 * (rows * cost.work + 4 * cost.parameters)  # of one step: many small ones take time, too
    silo.affords(f"{steps} training steps", work=steps * work)


def keep_expert(silo: Silo, learner: Learner) -> None:
    """What a later question goes on from."""
    silo.state.update(state_of(silo, learner))


def state_of(silo: Silo, learner: Learner) -> dict[str, Tensor]:
    """A learner's state, if all its numbers are finite."""
    found = learner.state(STATE)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values() if tensor.is_floating_point()):
        raise DataError(f"Silo '{silo.name}' met numbers that are not finite while training; lower the rate.")
    return found


class Tally:
    """Mean losses over steps, and the rows they cost in units of the batch."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self.forward = self.backward = 0.0

    def add(self, found: Measured) -> None:
        """One more step."""
        self.found.append(torch.stack([found.losses.matching, found.losses.independence]))
        self.forward += found.forward
        self.backward += found.backward

    def means(self) -> tuple[float, float, float, float]:
        """Matching, independence, and forward and backward passes of the batch a step."""
        matching, independence = torch.stack(self.found).double().mean(0).tolist()
        steps = len(self.found)
        return matching, independence, self.forward / steps, self.backward / steps
