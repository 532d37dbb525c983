"""A run in miniature at one site: what its questions weigh, and how long this machine takes to answer them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Cloud, shape
from anabranch.errors import RefusedError
from anabranch.federation import Federation, Refused, RemoteEngine, Silo, Site, decode, decode_question, size
from anabranch.methods.fedwad import Moments, distance, view_width
from anabranch.methods.ffm import FlowMatching, FlowServer, Histograms
from anabranch.methods.tables import agree
from anabranch.metrics import projection_directions, projection_edges
from anabranch.runs import Config, source_points
from anabranch.sites._kinds import Asked, questions
from anabranch.sites._open import load_silo
from anabranch.sites._rehearse_composition import rehearse_composition, share_of_steps
from anabranch.sites._settings import SiteSettings
from anabranch.transport import measure

LATENCY = 0.1  # seconds on the way, a question and its answer; measured engines stay below
_LOCAL_ROUNDS = 200  # of what a site fits alone: the rest is extrapolated


@dataclass(frozen=True)
class Measured:
    """One question and its answer: bytes to the site, bytes back, seconds of computing."""

    down: int
    up: int
    seconds: float


@dataclass(frozen=True)
class Cost:
    """A kind of question in a phase of a run, with what one of them costs; None where it was refused."""

    asked: Asked
    measured: Measured | None

    @property
    def bytes_down(self) -> int:
        """Bytes that arrive."""
        return self.asked.messages * self.measured.down if self.measured else 0

    @property
    def bytes_up(self) -> int:
        """Bytes that leave."""
        return self.asked.messages * self.measured.up if self.measured else 0

    @property
    def seconds(self) -> float:
        """Time on the way and of computing."""
        return self.asked.messages * (LATENCY + self.measured.seconds) if self.measured else 0.0


def estimate(folder: Path, settings: SiteSettings, config: Config) -> list[Cost]:
    """What a whole run would cost this site, from a rehearsal of each phase; the site's log and state stay as they are.

    A table is encoded with its own categories alone, so that in a real run its points may have more dimensions.
    """
    measured = _rehearse(folder, settings, config)
    options = config.settings.semidiscrete
    costs = []
    for asked in questions(config, settings.data.is_table):
        found = measured.get((asked.phase, asked.kind))
        if found is not None and asked.kind == "ffm.settle" and options.local_rounds > _LOCAL_ROUNDS:
            found = replace(found, seconds=found.seconds * options.local_rounds / _LOCAL_ROUNDS)
        if found is not None and config.composes:
            found = replace(found, seconds=found.seconds * share_of_steps(config, asked.kind))
        costs.append(Cost(asked, found))
    return costs


class Recorder:
    """Carries questions to one site of this process, and notes what each weighs and takes."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.phase = "open"
        self.found: dict[tuple[str, str], Measured] = {}

    def carry(self, asked: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        return {name: self._answer(data) for name, data in asked.items()}

    def _answer(self, data: bytes) -> bytes:
        question = decode_question(data).question
        started = time.perf_counter()
        sent = self.site.answer(data)
        seconds = time.perf_counter() - started
        reply = decode(sent)
        if isinstance(reply, Refused):
            raise RefusedError(reply.sentence)
        before = self.found.get((self.phase, question.kind))
        # The first answer of a kind builds what later ones only use.
        quickest = seconds if before is None else min(seconds, before.seconds)
        self.found[self.phase, question.kind] = Measured(size(question), size(reply), quickest)
        return sent


def _rehearse(folder: Path, settings: SiteSettings, config: Config) -> dict[tuple[str, str], Measured]:
    """One real exchange or two of every phase and kind; a refusal, or data that does not fit, is raised."""
    with TemporaryDirectory() as place:
        silo = load_silo(folder, settings)
        silo.folder, silo.smallest_group = Path(place), settings.policy.smallest_group
        silo.smallest_part = settings.policy.smallest_part
        recorder = Recorder(Site(silo, postprocessors=settings.privacy.guards()))
        federation = Federation(RemoteEngine([settings.name], recorder.carry))
        if silo.table is not None:
            agree(federation, config.data.missing, config.data.categorical)
        if config.compares:
            _compare(federation, silo, config, recorder)
            return recorder.found
        federation.open("rehearsal", config.seed)
        if config.composes:
            rehearse_composition(federation, config, recorder)
            _judge(federation, silo, config, recorder, None)
            return recorder.found
        source = source_points(config)
        server = FlowServer(_short(config.settings), federation, source)
        for phase in server.phases:
            recorder.phase = phase.name
            for number in range(1, phase.rounds + 1):
                federation.start_round(federation.round + 1)
                phase.step(number)
        _judge(federation, silo, config, recorder, source)
        return recorder.found


def _judge(federation: Federation, silo: Silo, config: Config, recorder: Recorder, source: Tensor | None) -> None:
    """A checkpoint, and an evaluation where the site gives histograms."""
    recorder.phase = "checkpoints"
    federation.keep(0)
    recorder.phase = "evaluation"
    if silo.held_out is not None and len(silo.held_out) >= silo.smallest_group:
        federation.ask(_histograms(config, federation.dimension, source))


def _compare(federation: Federation, silo: Silo, config: Config, recorder: Recorder) -> None:
    """Two rounds of a distance to a measure of as many atoms as ξ: where those lie makes no difference to the cost."""
    settings = replace(config.distance, rounds=2, between=())
    federation.open("rehearsal", config.seed)
    federation.everyone(Moments(settings.view))
    recorder.phase = "distance"
    shape = (settings.support, view_width(settings.view, federation.dimension))
    noise = torch.randn(shape, generator=seeds.generator(config.seed, "rehearsal"), dtype=torch.float64)
    distance(federation, silo.name, measure(noise), settings, config.seed)


def _short(settings: FlowMatching) -> FlowMatching:
    """The same exchanges, two rounds of each phase; every message is as large as in a whole run."""
    flow, potential, semi = settings.flow, settings.potential, settings.semidiscrete
    return replace(
        settings,
        flow=replace(flow, rounds=2),
        potential=replace(potential, before=min(2, potential.before), every=min(1, potential.every)),
        semidiscrete=replace(
            semi, rounds=2, local_rounds=min(_LOCAL_ROUNDS, semi.local_rounds), noises=min(semi.noises, semi.block)
        ),
    )


def _histograms(config: Config, dimension: int, given: Tensor | None) -> Histograms:
    """A question as evaluation asks it; source points stand for samples of the flow."""
    source = shape(config.flow.source, dimension) if given is None else Cloud(given)
    points = source.points(config.evaluation.points, seeds.generator(0, "source"))
    directions = projection_directions(dimension, 64, seeds.generator(0, "directions"))
    return Histograms(directions, projection_edges(points, directions, min(64, len(points))))
