"""What a method asks, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anabranch.errors import unknown
from anabranch.methods.dcfm import COMPOSITIONS
from anabranch.methods.ffm import POTENTIAL_COUPLINGS, PRESETS, FlowMatching, preset
from anabranch.runs import FEDWAD, Config, from_dict

STANDING = ("join", "keep", "rewind")
SITES = 2  # that a run in turns is counted for, where it is not known how many there are


@dataclass(frozen=True)
class Asked:
    """A kind of question in a phase of a run: how often one site is asked, and the answers that its limit counts."""

    phase: str
    kind: str
    messages: int
    answers: int


def questions(config: Config, tables: bool = False) -> list[Asked]:
    """Everything that one site is asked in an uninterrupted run, when it is asked in every round.

    >>> from anabranch.runs import from_dict
    >>> for asked in questions(from_dict({"flow": {"rounds": 50}})):
    ...     print(asked.phase, asked.kind, asked.messages)
    open join 1
    open ffm.prepare 1
    flow ffm.gradient 50
    checkpoints keep 25
    evaluation ffm.histograms 10
    """
    found = [_once("open", kind) for kind in (("tables.summarise", "tables.encode") if tables else ())]
    if config.compares:
        return [*found, _once("open", "join"), *_comparing(config)]
    if config.composes:
        found += [_once("open", kind) for kind in ("join", "experts.survey", "experts.prepare")]
        found += _composing(config)
    else:
        found += [_once("open", "join"), _once("open", "ffm.prepare")]
        found += _training(config.settings)
    rounds = count_rounds(config)
    every = config.run.checkpoint_every or max(1, rounds // 20)
    saves = -(-rounds // every)
    found.append(Asked("checkpoints", "keep", saves, saves))
    judged = int(config.data.source != "corners") if config.composes else len(config.evaluation.nfe)
    return [*found, Asked("evaluation", "ffm.histograms", judged, judged)] if judged else found


def _training(settings: FlowMatching) -> Iterator[Asked]:
    flow, potential, semi = settings.flow, settings.potential, settings.semidiscrete
    shared = settings.coupling.name in POTENTIAL_COUPLINGS
    if shared and potential.before:
        yield Asked("potential", "ffm.potential", potential.before, potential.before)
        if not potential.every:
            yield _once("potential", "ffm.share")
    if settings.coupling.name == "semidiscrete":
        blocks = -(-semi.noises // semi.block)
        yield Asked("duals", "ffm.lookup", semi.rounds, semi.rounds * semi.count)
        yield Asked("duals", "ffm.award", semi.rounds, semi.rounds)
        yield Asked("assign", "ffm.lookup", blocks, semi.noises)
        yield Asked("assign", "ffm.award", blocks, blocks)
        yield _once("assign", "ffm.settle")
    yield Asked("flow", "ffm.local" if flow.local_steps else "ffm.gradient", flow.rounds, flow.rounds)
    if shared and potential.every and flow.rounds >= potential.every:
        beside = flow.rounds // potential.every
        yield Asked("flow", "ffm.potential", beside, beside)


def _composing(config: Config) -> Iterator[Asked]:
    """What a composition asks a site that has one peer; in turns, each further peer hands over one expert a round."""
    settings = config.composed
    if settings.federated.rounds:
        yield Asked("federated", "experts.local", settings.federated.rounds, settings.federated.rounds)
        return
    if config.composition.experts_from:
        yield _once("experts", "experts.restore")
    else:
        answers = -(-settings.experts.steps // settings.every)
        yield Asked("experts", "experts.train", answers, answers)
    yield _once("experts", "experts.share")
    if settings.peers.rounds:
        yield _once("experts", "gathered")
        yield Asked("peers", "dcfm.peers", settings.peers.rounds, settings.peers.rounds)
        handed = settings.peers.rounds * (SITES - 1 if settings.peers.order == "sequential" else 1)
        yield Asked("peers", "gathered", handed, handed)
    if settings.student.steps:
        yield _once("student", "dcfm.adopt")


def _comparing(config: Config) -> Iterator[Asked]:
    """What a comparison with one other site asks; with more sites answers grow, messages do not."""
    settings = config.distance
    if settings.bounds or settings.start == "statistics":
        yield _once("open", "fedwad.moments")
    yield Asked("distance", "fedwad.interpolate", settings.rounds, settings.rounds)
    if settings.bounds:
        yield _once("distance", "fedwad.profile")
    yield _once("distance", "fedwad.settle")


def count_rounds(config: Config) -> int:
    """All rounds of a run, of all phases."""
    if config.compares:
        return config.distance.rounds + 1
    if config.composes:
        return _count_composing(config)
    settings = config.settings
    flow, potential, semi = settings.flow, settings.potential, settings.semidiscrete
    before = potential.before if settings.coupling.name in POTENTIAL_COUPLINGS else 0
    duals = semi.rounds - (-semi.noises // semi.block) if settings.coupling.name == "semidiscrete" else 0
    return before + duals + flow.rounds


def _count_composing(config: Config) -> int:
    settings = config.composed
    if settings.federated.rounds:
        return settings.federated.rounds
    given = bool(config.composition.experts_from)
    rounds = 1 if given else -(-settings.experts.steps // settings.every)
    rounds += settings.peers.rounds * (SITES if settings.peers.order == "sequential" else 1)
    if settings.student.steps:
        return rounds - (-settings.student.steps // settings.every)
    return rounds + (settings.mixture.router == "learned")


def kinds_of(method: str | FlowMatching | Config, tables: bool = False) -> tuple[str, ...]:
    """The kinds of question that a site must answer to take part in a method, by its preset's name or its settings, or
    in a run of a composition.

    That is for bare gradients and for local steps, with checkpoints and with evaluation on held-out points; `tables`
    adds what makes the rows of CSV files points.

    >>> kinds_of("vanilla")
    ('join', 'keep', 'rewind', 'ffm.prepare', 'ffm.gradient', 'ffm.local', 'ffm.histograms')
    """
    if method == FEDWAD:
        asked = [a.kind for a in questions(Config(method=FEDWAD), tables)]
        return tuple(sorted({"join", *asked}, key=_ORDER.index))
    if isinstance(method, Config) or method in COMPOSITIONS:
        config = method if isinstance(method, Config) else _composition(str(method))
        return tuple(dict.fromkeys([*STANDING, *sorted((a.kind for a in questions(config)), key=_ORDER.index)]))
    if isinstance(method, str) and method not in PRESETS:
        raise unknown("method", method, [*PRESETS, *COMPOSITIONS, FEDWAD])
    settings = preset(method) if isinstance(method, str) else method
    asked = [a.kind for steps in (0, 1) for a in questions(_with_local_steps(settings, steps), tables)]
    return tuple(dict.fromkeys([*STANDING, *sorted(asked, key=_ORDER.index)]))


def preset_questions(method: str) -> list[Asked]:
    """What one run of a preset asks."""
    if method == FEDWAD:
        return questions(Config(method=FEDWAD))
    if method in COMPOSITIONS:
        return questions(_composition(method))
    return questions(_with_local_steps(preset(method), 0))


def _composition(method: str) -> Config:
    return from_dict({**COMPOSITIONS[method], "method": method})


def _with_local_steps(settings: FlowMatching, steps: int) -> Config:
    parts = {name: getattr(settings, name) for name in ("coupling", "potential", "semidiscrete", "images")}
    return Config(flow=replace(settings.flow, local_steps=steps), **parts)


def _once(phase: str, kind: str) -> Asked:
    return Asked(phase, kind, 1, 1)


_ORDER = [
    *STANDING,
    "tables.summarise",
    "tables.encode",
    "ffm.prepare",
    "ffm.potential",
    "ffm.share",
    "ffm.lookup",
    "ffm.award",
    "ffm.settle",
    "ffm.gradient",
    "ffm.local",
    "experts.survey",
    "experts.prepare",
    "experts.train",
    "experts.restore",
    "experts.local",
    "experts.share",
    "gathered",
    "dcfm.peers",
    "dcfm.adopt",
    "ffm.histograms",
    "fedwad.moments",
    "fedwad.interpolate",
    "fedwad.profile",
    "fedwad.settle",
]
