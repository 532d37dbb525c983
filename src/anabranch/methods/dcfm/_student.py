"""DCFM-B at the server: the experts distilled into one student (DCFM, eq. 15–17)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from anabranch import seeds
from anabranch.data.attributes import Coverage
from anabranch.errors import DataError
from anabranch.flow.conditioning import AdditiveSince, Field, Masking, guided
from anabranch.methods.dcfm._replay import Counted, Replay, follow
from anabranch.methods.dcfm._settings import Composition
from anabranch.methods.experts import (
    Example,
    Learner,
    Measured,
    Mixture,
    Steps,
    Tally,
    bind,
    expert_network,
    measured,
    shared_network,
    shown_attributes,
)

LOG = logging.getLogger(__name__)
JUMP = 4.0  # times the least loss: no batch does that, but steps that have become too long do
CHUNK = 4096  # trajectories that are followed at once
Path = tuple[Field, Tensor]  # which field is followed, to which labels


class Student:
    """One flow that learns from teachers alone. `train` goes on for some steps; everything follows from the seed.

    It begins with parameters like those given as `start`, or fresh."""

    def __init__(
        self,
        settings: Composition,
        coverage: Coverage,
        like: Tensor,
        dimension: int,
        seed: int,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.settings, self.coverage, self.seed = settings, coverage, seed
        self.dimension, self.device, self.dtype = dimension, like.device, like.dtype
        first = student_network(settings, dimension, coverage.space.sizes, seed).to(like.device)
        self.network = shared_network(
            settings.experts, dimension, coverage.space.sizes, like.device, student_kind(settings)
        )
        rule = replace(settings.experts.rule(settings.student.steps), rate=settings.student.rate)
        fresh = {name: p.detach() for name, p in first.named_parameters()}
        self.learner = Learner(start or fresh, rule, settings.student.average)
        generator = self._generator("step", 0)
        self._steps = Steps(self.network, self.learner, self._measure, settings.student.penalty, generator)
        self._like = like
        self._pool: Replay | None = None
        self._drawn = -1
        self._asked = 0.0
        self._least, self._warned = math.inf, False

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self.learner.optimizer.steps

    def train(self, teachers: Mixture, steps: int) -> dict[str, float | Tensor]:
        """So many steps; the mean losses, and the passes of a batch that a step took."""
        tally = Tally()
        for _ in range(steps):
            self._refresh(teachers)
            self._steps.generator.manual_seed(self._seed("step", self.steps))
            tally.add(self._steps.take())
        matching, independence, forward, backward = tally.means()
        self._watch(matching)
        asked = self._asked / (self.settings.student.batch * self.settings.student.refresh)
        return {"loss": matching, "independence": independence, "forward": forward + asked, "backward": backward}

    def _watch(self, loss: float) -> None:
        """Says once if training has come off its way: it finds back, but what it has learned until then is lost.

        From numbers that are not finite it does not, and that is an error.
        """
        if not math.isfinite(loss):
            raise DataError(f"The student met numbers that are not finite by step {self.steps}; lower student.rate.")
        if loss > JUMP * self._least and not self._warned:
            LOG.warning(
                "The student's loss rose to %.3g by step %d, after it had been down to %.3g: steps at a rate of %g are"
                " too long for it, and those until it has found back are lost. Lower student.rate, or bound gradients"
                " by experts.clip.",
                *(loss, self.steps, self._least, self.settings.student.rate),
            )
            self._warned = True
        self._least = min(self._least, loss)

    def _measure(self, parameters: Mapping[str, Tensor], generator: torch.Generator) -> Measured:
        field = self._bound(parameters)
        found = measured(field, self._draw(generator))
        terms = len(self.coverage.space.sizes) + 1 if isinstance(field, AdditiveSince) else 1  # rows for one of a batch
        return replace(found, forward=terms * found.forward, backward=terms * found.backward)

    def _draw(self, generator: torch.Generator) -> Example:
        """A batch of the pool, with the masks of the experts; an additive student may see whole labels alone."""
        own, experts, pool = self.settings.student, self.settings.experts, self._pool
        assert pool is not None
        masking = Masking(1.0, 0.0, 0.0) if own.additive and own.whole else experts.masking
        index = torch.randint(len(pool), (own.batch,), generator=generator, device=generator.device)
        shown = shown_attributes(pool.y[index], experts, masking, own.penalty > 0, generator)
        weight = shown.weight.to(pool.x.dtype)
        x, v, t, y = (part[index] for part in (pool.x, pool.v, pool.t, pool.y))
        return Example(x, v, t, y, shown.masks, weight, shown.gap, experts.late, shown.rest)

    def _bound(self, parameters: Mapping[str, Tensor]) -> Field:
        field, own = bind(self.network, parameters, self.settings.experts), self.settings.student
        return AdditiveSince(field, own.since) if own.additive and own.since > 0 else field

    def field(self, averaged: bool = True) -> Field:
        """The student as it stands."""
        found = self.learner.average.parameters if averaged else self.learner.parameters
        return self._bound({name: t.detach() for name, t in found.items()})

    def _refresh(self, teachers: Mixture) -> None:
        """Draws the pool of this stretch of steps: the same whether training was interrupted or not."""
        number = self.steps // self.settings.student.refresh
        if self._pool is not None and self._drawn == number:
            return
        check_taught(self.coverage)
        generator, own = self._generator("paths", number), self.settings.student
        asked = {name: Counted.of(field) for name, field in teachers.experts.items()}
        followed = self._taught if own.paths == "teachers" else self._mixed
        paths = followed(replace(teachers, experts=asked), generator)
        if self._pool is None:  # from then on in one place: a recorded step reads it where it lies
            attributes = len(self.coverage.space.sizes)
            self._pool = Replay.room(own.trajectories * own.path_steps, self.dimension, attributes, self._like)
        rows, self._drawn = 0, -1  # whoever is interrupted here draws it all again
        for field, codes in paths:
            for y in torch.split(codes, CHUNK):
                x0 = torch.randn(len(y), self.dimension, generator=generator, device=self.device, dtype=self.dtype)
                part = self._pool.rows(rows, len(y) * own.path_steps)
                follow(field, x0, y, generator, part)
                rows += len(part)
        assert rows == len(self._pool)  # no row is left as memory was found
        self._drawn, self._asked = number, sum(field.rows for field in asked.values())

    def _taught(self, teachers: Mixture, generator: torch.Generator) -> Iterator[Path]:
        """Each teacher's paths to combinations that it holds, as many as it has samples of them."""
        counts = torch.stack([self.coverage.counts[name] for name in teachers.experts])
        counts = counts.to(generator.device, torch.float64)
        drawn = torch.multinomial(
            counts.flatten(), self.settings.student.trajectories, replacement=True, generator=generator
        )
        teacher, label = drawn // counts.shape[1], drawn % counts.shape[1]
        codes = self.coverage.space.combinations().to(generator.device)
        for number, field in enumerate(teachers.experts.values()):
            own = label[teacher == number]
            if len(own):
                yield self._sharpened(field), codes[own]

    def _mixed(self, mixture: Mixture, generator: torch.Generator) -> Iterator[Path]:
        """The mixture's paths to known combinations and, if composed, to novel ones; those by composition."""
        total = self.coverage.total.to(generator.device, torch.float64)
        known = total / total.sum()
        fresh = (total == 0) & self.coverage.determined.to(generator.device)
        wanted = self.settings.student.paths == "composed" and bool(fresh.any())
        share = self.settings.student.novel if wanted else 0.0
        weight = (1 - share) * known + share * fresh / fresh.sum().clamp_min(1)
        count = self.settings.student.trajectories
        drawn = torch.multinomial(weight, count, replacement=True, generator=generator)
        codes = self.coverage.space.combinations().to(generator.device)[drawn.sort().values]
        for y in torch.split(codes, CHUNK):
            for rows in (mixture.known(y).to(y.device), ~mixture.known(y).to(y.device)):
                if bool(rows.any()):
                    yield self._way(mixture, y[rows]), y[rows]

    def _sharpened(self, field: Field) -> Field:
        return field if self.settings.student.guidance == 1 else guided(field, self.settings.student.guidance)

    def _way(self, mixture: Mixture, y: Tensor) -> Field:
        """How the mixture goes to these labels: composed where they are novel, or by guidance."""
        sharp = self.settings.student.guidance != 1
        return mixture.field(y, "guided", self.settings.student.guidance) if sharp else mixture.field(y)

    def _generator(self, *names: str | int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self._seed(*names))

    def _seed(self, *names: str | int) -> int:
        return seeds.derive(self.seed, "student", *names)


def check_taught(coverage: Coverage) -> None:
    """Refuses teachers of whom nothing is known: a student follows them to the combinations that they hold."""
    if not bool(coverage.observed.any()):
        raise DataError(
            "No silo tells a count of any combination, so that a student would not know what to ask its teachers for:"
            " a count below a silo's smallest_group is told as 0. Bring more samples of each combination, lower"
            " smallest_group there, or take a method without a student."
        )


def student_network(settings: Composition, dimension: int, sizes: tuple[int, ...], seed: int = 0) -> nn.Module:
    """A network like the experts', or the additive one of its kind."""
    return expert_network(settings.experts, dimension, sizes, seeds.derive(seed, "student"), student_kind(settings))


def student_kind(settings: Composition) -> str:
    """The name of the student's network. One that adds only since some time is told all attributes before."""
    name = settings.experts.network
    if not settings.student.additive or settings.student.since > 0:
        return name
    return "additive-" + name.removeprefix("conditional-").removeprefix("additive-")
