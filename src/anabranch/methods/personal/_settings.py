"""What server and silos agree on before classifiers are trained."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import UsageError, unknown
from anabranch.federation import WEIGHTINGS

METHODS = ("fedavg", "fedper", "fedrep")
FILTERS: dict[str, tuple[int, ...]] = {"mlp": (), "cnn": (64, 64)}
HIDDEN: dict[str, tuple[int, ...]] = {"mlp": (512, 256, 64), "cnn": (120, 64)}
LARGEST = 1e6  # rate or decay: float32 must be able to hold what comes of it


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent as torch has it; the weights decay, the biases do not, as in FedRep's own code."""

    batch: int = 10
    rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"A batch of {self.batch} points was given; a batch holds at least one.")
        if not 0 < self.rate <= LARGEST:
            raise UsageError(f"A rate of {self.rate} was given; a rate is a positive number up to {LARGEST:g}.")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"A momentum of {self.momentum} was given; it must lie in [0, 1).")
        if not 0 <= self.weight_decay <= LARGEST:
            raise UsageError(f"A weight decay of {self.weight_decay} was given; it must lie in [0, {LARGEST:g}].")


@dataclass(frozen=True)
class PersonalSettings:
    """Federated classifiers: `rounds` in which a share `participation` of the silos trains for `epochs` locally.

    `method` "fedavg" shares everything (McMahan et al. 2017); "fedper" (Arivazhagan et al. 2019) and "fedrep" (Collins
    et al. 2021) share the body of the network, and every silo keeps its last layer, the head, to itself. FedPer trains
    both together; FedRep spends the first `head_epochs` on the head alone and the rest on the body alone.

    `batch`, `rate`, `momentum` and `weight_decay` are those of local SGD. `hidden` are the widths of the hidden layers;
    None takes those of the public experiments: 512, 256, 64 for the "mlp", and 120, 64 behind two convolutions for the
    "cnn", whose points are square images of so many `channels`.

    Before it is scored, a silo with a head of its own fits a copy of it for `tune_epochs`, with the body frozen: most
    silos have not met the latest body, and some have never taken part. FedAvg is scored as it is. The public code fits
    all heads after the last round only; we do so in every round, so that rounds can be compared.
    """

    method: str = "fedavg"
    rounds: int = 10
    participation: float = 0.1
    epochs: int = 5
    head_epochs: int = 4
    tune_epochs: int = 10
    batch: int = 10
    rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 1e-4
    network: str = "mlp"
    hidden: tuple[int, ...] | None = None
    channels: int = 3
    classes: int = 10
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        for kind, known in (("method", METHODS), ("network", tuple(HIDDEN)), ("weighting", WEIGHTINGS)):
            if getattr(self, kind) not in known:
                raise unknown(kind, getattr(self, kind), known)
        for name, least in (("rounds", 1), ("epochs", 1), ("tune_epochs", 0), ("channels", 1), ("classes", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 < self.participation <= 1:
            raise UsageError(f"participation is {self.participation}; a share of the silos lies in (0, 1].")
        if self.method == "fedrep" and not 1 <= self.head_epochs < self.epochs:
            raise UsageError(
                f"FedRep was given {self.head_epochs} epochs for the head out of {self.epochs}; head and body need at"
                " least one each."
            )
        if self.hidden is not None and (not self.hidden or min(self.hidden) < 1):
            raise UsageError(f"hidden is {self.hidden}; give one or more widths, each at least 1.")
        _ = self.descent

    @property
    def descent(self) -> Descent:
        """How silos descend."""
        return Descent(self.batch, self.rate, self.momentum, self.weight_decay)

    @property
    def shares_head(self) -> bool:
        """Whether the last layer belongs to all silos."""
        return self.method == "fedavg"

    @property
    def keeps_state_in_silos(self) -> bool:
        """Whether silos hold something that only they know: their heads."""
        return not self.shares_head

    @property
    def epochs_of_head(self) -> int:
        """Epochs that the head trains alone, the body following alone; 0 where they train together."""
        return self.head_epochs if self.method == "fedrep" else 0

    def taking_part(self, silos: int) -> int:
        """How many of so many silos train in a round.

        >>> PersonalSettings().taking_part(40), PersonalSettings().taking_part(8)
        (4, 1)
        """
        return max(1, int(self.participation * silos))
