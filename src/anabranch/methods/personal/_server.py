"""The server half: averages what silos share, and never sees data or a silo's own head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from torch import Tensor

from anabranch import seeds
from anabranch.errors import QuorumError, UsageError
from anabranch.federation import Federation, Ledger, Participation, Silo
from anabranch.methods.ffm import Progress
from anabranch.methods.personal import _silo
from anabranch.methods.personal._messages import LocalSteps, Score, ScoreReply
from anabranch.methods.personal._networks import initial_body, initial_head
from anabranch.methods.personal._settings import PersonalSettings

SILO_HALF = _silo  # importing the server half registers the silo half
LAST = 10  # rounds whose mean accuracy is reported


class PersonalServer:
    """FedAvg, FedPer or FedRep: iterating `run` trains, and scores every silo after every round.

    Between rounds `state` is all that a later `load` needs; silos keep their heads themselves.
    """

    def __init__(self, settings: PersonalSettings, federation: Federation) -> None:
        if not federation.weight:
            raise UsageError("The federation is not open yet; call federation.open(run, seed) first.")
        if federation.weighting != settings.weighting or federation.participation.rule != "all":
            raise UsageError(
                f"The settings weigh silos '{settings.weighting}' and choose them themselves; open the federation with"
                f" weighting='{settings.weighting}' and without a participation."
            )
        self.settings = settings
        self.federation = federation
        self.parameters = initial_body(settings, federation.dimension, federation.seed)
        if settings.shares_head:
            self.parameters |= initial_head(self.parameters, settings.classes, federation.seed)
        self.history: list[dict[str, float]] = []
        self.failures: dict[str, str] = {}

    def run(self, done: int = 0) -> Iterator[Progress]:
        """Trains from after round `done` to the end, yielding after every round."""
        for number in range(done + 1, self.settings.rounds + 1):
            self.federation.start_round(number)
            answered = self._train()
            self.history.append(self._score())
            metrics: dict[str, float | Tensor] = {"accuracy": fmean(self.history[-1].values()), "answered": answered}
            yield Progress(number, self.settings.rounds, self.settings.method, metrics, self.failures)

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint of the server must hold."""
        return {f"shared/{name}": tensor for name, tensor in self.parameters.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continues from a checkpoint, to the bit."""
        self.parameters = {name: state[f"shared/{name}"].clone() for name in self.parameters}

    def _train(self) -> int:
        settings, federation = self.settings, self.federation
        present = {name: federation.weight[name] for name in federation.names}
        some = Participation("random", settings.taking_part(len(present)))
        chosen = some.choose(present, seeds.generator(federation.seed, "participation", federation.round))
        question = LocalSteps(
            self.parameters, settings.classes, settings.epochs, settings.epochs_of_head, **asdict(settings.descent)
        )
        mean = federation.mean(question, chosen)
        self.parameters = mean.reply.parameters
        self.failures = dict(mean.failures)
        return len(mean.answered)

    def _score(self) -> dict[str, float]:
        epochs = 0 if self.settings.shares_head else self.settings.tune_epochs
        replies = self.federation.ask(
            Score(self.parameters, self.settings.classes, epochs, **asdict(self.settings.descent))
        )
        self.failures |= replies.failures
        if not replies.answers:
            raise QuorumError(f"No silo could be scored: {' '.join(list(replies.failures.values())[:3])}")
        return {name: r.right / r.total for name, r in replies.answers.items() if isinstance(r, ScoreReply)}


@dataclass(frozen=True)
class PersonalResult:
    """Trained classifiers: each silo's accuracy on its held-out points after every round, what is shared, and traffic.

    `failures` has the last complaint of each silo that was left out of something. After clustered training the shared
    parameters stand under `cluster/name`.
    """

    history: tuple[dict[str, float], ...]
    parameters: dict[str, Tensor] = field(repr=False)
    ledger: Ledger = field(repr=False)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> dict[str, float]:
        """Each silo's accuracy after the last round."""
        return self.history[-1]

    @property
    def rounds(self) -> tuple[float, ...]:
        """The mean over silos after every round."""
        return tuple(fmean(silos.values()) for silos in self.history)

    @property
    def final(self) -> float:
        """The mean over silos after the last round, as in FedWaD's tables."""
        return self.rounds[-1]

    @property
    def reported(self) -> float:
        """The mean of the last ten rounds, or of all where there are fewer, as FedRep's code has it."""
        return fmean(self.rounds[-LAST:])


def train_personal(
    silos: Sequence[Silo] | Federation, settings: PersonalSettings | None = None, seed: int = 0
) -> PersonalResult:
    """Trains classifiers on the silos' labelled points and scores them on what the silos hold out.

    >>> import torch
    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> label = (x[:, 0] > 0).long()
    >>> silos = [Silo(name, x[:30], label[:30], x[30:], held_out_label=label[30:]) for name in "ab"]
    >>> result = train_personal(silos, PersonalSettings("fedrep", rounds=2, hidden=(8,), classes=2))
    >>> sorted(result.accuracy), len(result.rounds)
    (['a', 'b'], 2)
    """
    settings = settings or PersonalSettings()
    federation = silos if isinstance(silos, Federation) else Federation(silos, settings.weighting)
    federation.open(f"train_personal/{seed}/{seeds.derive(seed, repr(settings))}", seed)
    server = PersonalServer(settings, federation)
    failures: dict[str, str] = {}
    for progress in server.run():
        failures |= progress.failures
    return PersonalResult(tuple(server.history), server.parameters, federation.ledger, failures)


def train_clustered(
    silos: Sequence[Silo], clusters: Mapping[str, int], settings: PersonalSettings | None = None, seed: int = 0
) -> PersonalResult:
    """One federation for each cluster {silo: number}, with one seed; accuracies are means over all silos."""
    names = {silo.name for silo in silos}
    if names != set(clusters):
        odd = ", ".join(sorted(names ^ set(clusters)))
        raise UsageError(f"Clusters were given for other silos than there are ({odd}); name each silo once.")
    parts = {
        number: train_personal([silo for silo in silos if clusters[silo.name] == number], settings, seed)
        for number in sorted(set(clusters.values()))
    }
    history = zip(*(part.history for part in parts.values()), strict=True)
    ledger = Ledger()
    ledger.load([line for part in parts.values() for line in part.ledger.state()])
    return PersonalResult(
        tuple({name: share for scored in row for name, share in scored.items()} for row in history),
        {f"{number}/{name}": t for number, part in parts.items() for name, t in part.parameters.items()},
        ledger,
        {name: why for part in parts.values() for name, why in part.failures.items()},
    )
