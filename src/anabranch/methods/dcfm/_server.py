"""The server half: surveys attributes, has experts trained, and makes one field of them. It never sees data."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.errors import CheckpointError, DataError, QuorumError, UsageError
from anabranch.federation import Federation, Message, first_few
from anabranch.flow import MovingAverage
from anabranch.flow.conditioning import Field
from anabranch.methods._phases import Phase, Phased
from anabranch.methods.dcfm import _peers
from anabranch.methods.dcfm._messages import Adopt, PeerSteps
from anabranch.methods.dcfm._settings import Composition
from anabranch.methods.dcfm._student import Student, check_taught
from anabranch.methods.dcfm._survey import survey
from anabranch.methods.experts import (
    Energies,
    Expert,
    Holders,
    Learned,
    LocalSteps,
    Marginals,
    Mixture,
    Prepare,
    Restore,
    Router,
    Rule,
    Share,
    Train,
    bind,
    expert_network,
    precision_warnings,
    samples_of_experts,
    settings_to_json,
    shared_network,
    train_router,
)

SILO_HALF = _peers  # importing the server half registers the silo half
ONE = "flow"  # the only expert of FedFlow and of a student


class CompositionServer(Phased):
    """FedFlow, DDM, DFD, DCFM-A, DCFM-B and ours: iterating `run` trains, `mixture` is what came of it.

    Between rounds `state` is all that a later `load` needs to go on. `space` is the attribute space where it is known
    beforehand; otherwise it is all that the silos know. `experts` are those of an earlier run, by silo: then Stage I is
    not repeated. `warnings` says what is wrong with the coverage, if it is to be tried all the same, and with the
    precision. `shape` is that of images, where silos hold such and say so.
    """

    def __init__(
        self,
        settings: Composition,
        federation: Federation,
        space: AttributeSpace | None = None,
        experts: Mapping[str, dict[str, Tensor]] | None = None,
    ) -> None:
        if not federation.weight:
            raise UsageError("The federation is not open yet; call federation.open(run, seed) first.")
        if settings.peers.rounds and len(federation.names) < 2:
            raise UsageError("DCFM-A trains experts beside those of peers, and there is one silo; take two or more.")
        self.settings, self.federation = settings, federation
        self.coverage, self.shape = survey(federation, space)
        self.warnings = [*self.coverage.check(settings.force), *precision_warnings(settings.experts, federation)]
        if settings.student.steps:
            check_taught(self.coverage)
        self.experts: dict[str, dict[str, Tensor]] = {}
        self.given = dict(experts or {})
        self.failures: dict[str, str] = {}
        self._idle = 0
        self.router: Router | None = None
        first = expert_network(settings.experts, federation.dimension, self.sizes, self._seed("flow"))
        self.shared = {name: p.detach().clone().to(federation.device) for name, p in first.named_parameters()}
        decay = settings.experts.average**settings.federated.local_steps
        self.average = MovingAverage(self.shared, decay if settings.federated.rounds else 0.0)
        self._student: Student | None = None
        self.phases = self._phases()
        prepare = Prepare(settings_to_json(settings.experts), self.coverage.space.to_json())
        federation.everyone(prepare)

    @property
    def sizes(self) -> tuple[int, ...]:
        """(|Y1|, …, |Yk|)."""
        return self.coverage.space.sizes

    @property
    def student(self) -> Student:
        """The student, which begins when it is first asked for: then it is known where the experts are."""
        if self._student is None:
            widest = max(self.experts, key=lambda name: (int((self.held.counts[name] > 0).sum()), name))
            start = self.experts[widest] if self.settings.student.start == "expert" else None
            dimension, seed = self.federation.dimension, self._seed("student")
            self._student = Student(self.settings, self.held, self._like, dimension, seed, start)
        return self._student

    @property
    def held(self) -> Coverage:
        """The coverage by those whose experts are here."""
        counts, withheld = self.coverage.counts, self.coverage.withheld
        here = {name: withheld[name] for name in self.experts if name in withheld}
        return Coverage(self.coverage.space, {name: counts[name] for name in self.experts}, here)

    def mixture(self) -> Mixture:
        """What came of it, as one field: a student, one averaged flow, or experts with their rule."""
        settings, coverage = self.settings, self.coverage
        if settings.federated.rounds:
            like = next(iter(self.shared.values()))
            network = shared_network(settings.experts, self.federation.dimension, self.sizes, like.device)
            flow = bind(network, self.average.parameters, settings.experts)
            return Mixture({ONE: flow}, coverage, Holders(coverage), like.device)
        if settings.student.steps:
            return Mixture({ONE: self.student.field()}, self.held, Holders(self.held), self.student.device)
        return self.mixture_of_experts()

    def mixture_of_experts(self) -> Mixture:
        """The experts with the rule of the settings."""
        return Mixture(self._fields(), self.held, self._rule(), self._like.device)

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint of the server must hold."""
        found = {f"shared/{name}": tensor for name, tensor in self.shared.items()}
        if self.settings.federated.rounds:
            found |= {f"average/{name}": tensor for name, tensor in self.average.state().items()}
        for silo, parameters in self.experts.items():
            found |= {f"expert/{silo}/{name}": tensor for name, tensor in parameters.items()}
        if self._student is not None:
            found |= self._student.learner.state("student")
        if self.router is not None:
            found |= {f"router/{name}": tensor for name, tensor in self.router.state_dict().items()}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continues from a checkpoint, to the bit, where silos compute; peers are handed each other's experts again."""
        state = {name: tensor.to(self.federation.device) for name, tensor in state.items()}
        self.shared = under(state, "shared/")
        if not self.shared:
            raise CheckpointError("This checkpoint holds no composition; it belongs to another kind of run.")
        if self.settings.federated.rounds:
            self.average.load(under(state, "average/"))
        for name, tensor in under(state, "expert/").items():
            silo, _, parameter = name.partition("/")
            self.experts.setdefault(silo, {})[parameter] = tensor
        self.experts = dict(sorted(self.experts.items()))  # a file has no order, and random numbers follow it
        if any(name.startswith("student/") for name in state):
            self.student.learner.load("student", state)
        if router := under(state, "router/"):
            self.router = Router(self.federation.dimension, len(self.experts))
            self.router.load_state_dict(router)
            self.router.to(self._like)
        if self.settings.peers.rounds and self.experts:
            parcels: dict[str, Message] = {silo: Expert(parameters) for silo, parameters in self.experts.items()}
            self.federation.hand_out(parcels, self.federation.names)

    def _phases(self) -> list[Phase]:
        settings = self.settings
        if settings.federated.rounds:
            return [Phase("federated", settings.federated.rounds, self._average)]
        phases = [Phase("experts", -(-settings.experts.steps // settings.every), self._train)]
        if self.given:
            phases = [Phase("experts", 1, self._restore)]
        if settings.peers.rounds:
            turns = len(self.federation.names) if settings.peers.order == "sequential" else 1
            phases.append(Phase("peers", settings.peers.rounds * turns, self._train_beside))
        if settings.student.steps:
            phases.append(Phase("student", -(-settings.student.steps // settings.every), self._distil))
        elif settings.mixture.router == "learned":
            phases.append(Phase("router", 1, self._learn_router))
        return phases

    def _average(self, number: int) -> dict[str, float | Tensor]:
        """FedFlow: one round of local steps, and their average."""
        steps, rounds = self.settings.federated.local_steps, self.settings.federated.rounds
        rule = self.settings.experts.rule(rounds * steps)
        # A rate holds for a whole round: the mean of those that an expert's steps would have.
        rate = fmean(rule.rate_at(step) for step in range((number - 1) * steps, number * steps))
        question = LocalSteps(self.shared, steps, rate)
        mean = self.federation.mean(question, self.federation.chosen())
        self.shared, self.failures = mean.reply.parameters, mean.failures
        if number == 1:
            self.average = MovingAverage(self.shared, self.average.decay)
        self.average.update(self.shared)
        return _metrics(mean.reply)

    def _train(self, number: int) -> dict[str, float | Tensor]:
        """Stage I, some steps further; the last time experts are shared."""
        settings = self.settings
        done = (number - 1) * settings.every
        steps = min(settings.every, settings.experts.steps - done)
        mean = self.federation.mean(Train(steps, done, settings.experts.steps))
        self.failures = dict(mean.failures)
        if done + steps == settings.experts.steps:
            self._share()
        return _metrics(mean.reply)

    def _restore(self, number: int) -> dict[str, float | Tensor]:
        """Experts of an earlier run in place of Stage I."""
        if missing := sorted(set(self.federation.names) - set(self.given)):
            raise UsageError(f"No expert of an earlier run was given for {', '.join(missing)}; give one for each silo.")
        self.federation.everyone({name: Restore(self.given[name]) for name in self.federation.names})
        self._share()
        return {}

    def _share(self) -> None:
        """Experts come to the server and, for DCFM-A, to all peers."""
        names = self.federation.names if self.settings.peers.rounds else []
        replies = self.federation.gather(Share(), share_with=names)
        self.failures |= replies.failures
        self._take(replies.answers)

    def _train_beside(self, number: int) -> dict[str, float | Tensor]:
        """DCFM-A: one silo's turn, or all silos at once against each other's experts of before."""
        settings, names = self.settings.peers, sorted(self.experts)
        turn = names if settings.order == "simultaneous" else [names[(number - 1) % len(names)]]
        met = {name: torch.cat(self._met(name)) for name in names}
        replies = self.federation.gather(PeerSteps.of(settings, met, settings.steps), turn, share_with=names)
        self.failures = dict(replies.failures)
        self._idle = 0 if replies.answers else self._idle + len(turn)  # turns in a row that nobody took
        if self._idle >= len(names):
            why = first_few(replies.failures)
            raise QuorumError(
                f"No silo trained beside its peers when it was its turn. {why} Resume the run once they answer."
            )
        self._take(replies.answers)
        return _metrics(*replies.answers.values())

    def _met(self, name: str) -> list[Tensor]:
        """Of each attribute, of which outcomes a silo has samples enough to be asked about them."""
        table = self.coverage.counts[name].reshape(self.sizes)
        rest = [[other for other in range(len(self.sizes)) if other != place] for place in range(len(self.sizes))]
        return [table.sum(others) >= self.settings.peers.least for others in rest]

    def _distil(self, number: int) -> dict[str, float | Tensor]:
        """DCFM-B: the student, some steps further; in the end every silo receives it."""
        settings = self.settings
        steps = min(settings.every, settings.student.steps - self.student.steps)
        metrics = self.student.train(self.mixture_of_experts(), steps)
        if self.student.steps == settings.student.steps:
            self.failures = self.federation.ask(Adopt(self.student.learner.average.parameters)).failures
        return metrics

    def _learn_router(self, number: int) -> dict[str, float | Tensor]:
        """DDM's router, from the experts' own samples."""
        options, like = self.settings.mixture, self._like
        generator = torch.Generator(like.device).manual_seed(self._seed("router"))
        shape = (options.router_samples, self.federation.dimension)
        x0 = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
        samples = samples_of_experts(self._fields(), self.held, options.router_samples, 20, x0, generator)
        self.router = train_router(samples, options.router_steps, 256, self._seed("router"))
        return {}

    def _take(self, answers: Mapping[str, Message]) -> None:
        found = {name: answer.parameters for name, answer in answers.items() if isinstance(answer, Expert)}
        for name, parameters in found.items():
            _check_shapes(name, parameters, self.shared)
        self.experts = dict(sorted((self.experts | found).items()))
        if len(self.experts) < max(1, self.federation.quorum):
            raise self.federation.too_few(len(self.experts), self.failures)

    def _fields(self) -> dict[str, Field]:
        """Every expert as a field, on the device where its parameters are."""
        if not self.experts:
            raise UsageError("There are no experts yet; train first.")
        network = shared_network(self.settings.experts, self.federation.dimension, self.sizes, self._like.device)
        return {name: bind(network, parameters, self.settings.experts) for name, parameters in self.experts.items()}

    def _rule(self) -> Rule:
        options, coverage = self.settings.mixture, self.held
        if options.router == "energy":
            return Energies(coverage, options.temperature, top=options.top)
        if options.router == "learned" and self.router is not None:
            return Learned(coverage, self.router, options.top)
        if options.router == "holders":
            return Holders(coverage, options.top)
        return Marginals(coverage, options.top)

    @property
    def _like(self) -> Tensor:
        """A tensor of an expert: where they all are, and in which type of number."""
        return next(iter(next(iter(self.experts.values())).values()))

    def _seed(self, *names: str) -> int:
        return seeds.derive(self.federation.seed, "composition", *names)


def under(state: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}


def _metrics(*replies: object) -> dict[str, float | Tensor]:
    """Mean losses, and the passes of a batch that a step took."""
    names = {"matching": "loss", "independence": "independence", "forward": "forward", "backward": "backward"}
    return {shown: fmean(getattr(reply, name) for reply in replies) for name, shown in names.items() if replies}


def _check_shapes(name: str, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """An expert of another shape cannot be of this run."""
    odd = got.keys() ^ wanted.keys() or {key for key, tensor in got.items() if tensor.shape != wanted[key].shape}
    if odd:
        raise DataError(f"Silo '{name}' shared an expert of another shape ({', '.join(sorted(odd)[:3])}).")
