"""What is made of the experts: each section is a flat record that a TOML file can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from anabranch.errors import UsageError, unknown
from anabranch.methods._records import check_types
from anabranch.methods.experts import ExpertSettings, check_training

ORDERS = ("sequential", "simultaneous")
PATHS = ("teachers", "together", "composed")
STARTS = ("fresh", "expert")
ROUTERS = ("holders", "marginals", "learned", "energy")


@dataclass(frozen=True)
class FederatedSettings:
    """FedFlow: `rounds` of `local_steps` in every silo, after each of which parameters are averaged (0: no FedFlow).

    The rate falls from round to round as the experts' schedule says.
    """

    rounds: int = 0
    local_steps: int = 10

    def __post_init__(self) -> None:
        check_types(self, "federated")
        if self.rounds < 0 or self.local_steps < 1:
            raise UsageError(
                f"{self.rounds} rounds of {self.local_steps} local steps cannot be; give rounds from 0, steps from 1."
            )


@dataclass(frozen=True)
class PeerSettings:
    """DCFM-A: `rounds` in which every silo trains its expert for `steps` beside those of its peers (0: no DCFM-A).

    `order` "simultaneous" is the paper's: all silos train against experts as they were before the round, so that each
    makes the whole correction, and together they overshoot. "sequential" lets each see those already updated; it
    converges in about three rounds. `penalty` is λ of eq. (14), `rate` that of Adam at the start of each round. A peer
    is only asked about outcomes of which it has `least` samples or more.

    At time t the penalty counts t^`late` (1 − t)^`early`. In noise attributes are not independent (`late`, as that of
    experts); of a combination that a peer has never met it knows the less the clearer the image is, and what it then
    says is no guide (`early`). `held` compares terms with the silo's whole velocity as it
    stands, which then follows data alone, instead of moving both towards each other as eq. (12) does.
    """

    rounds: int = 0
    steps: int = 400
    order: str = "sequential"
    penalty: float = 5.0
    rate: float = 1e-3
    least: int = 1
    early: float = 0.0
    late: float = 0.0
    held: bool = False

    def __post_init__(self) -> None:
        check_types(self, "peers")
        check_training(self.steps, 1, self.penalty, 0.0)
        for name, of in (("early", "1 − t"), ("late", "t")):
            if not 0 <= (power := getattr(self, name)) < math.inf:
                raise UsageError(f"peers.{name} is {power}; the power of {of} that counts is 0 or positive.")
        if self.least < 1:
            raise UsageError(f"peers.least is {self.least}; a peer has met an outcome of which it has one sample.")
        if self.order not in ORDERS:
            raise unknown("order of peers", self.order, ORDERS)
        if self.rounds < 0:
            raise UsageError(f"peers.rounds is {self.rounds}; it must not be negative.")
        if not 0 < self.rate < math.inf:
            raise UsageError(f"peers.rate is {self.rate}; a rate is a positive number.")


@dataclass(frozen=True)
class StudentSettings:
    """DCFM-B: the server distils the experts into one student in `steps` of `batch` (0: no student).

    It learns the teachers' velocities along their own paths (eq. 15): `trajectories` of `path_steps` points, drawn anew
    every `refresh` steps. `paths` "teachers" asks each teacher for combinations that it holds; "together" follows the
    mean of all that hold one, by how many samples of it each has, so that what single teachers have wrong averages out,
    at the price of asking them all; "composed" also follows composed paths of combinations that nobody holds, a share
    `novel` of all. With `guidance` w above 1 the teachers' labels are sharpened, v(∅) + w (v(y) − v(∅)), on both, so
    that the student is sharp at one evaluation (Meng et al. 2023). `penalty` is λ of eq. (17). It begins `fresh`, or as
    the `expert` of the silo that holds most combinations, which has less left to learn.

    An `additive` student v = c(x, t) + Σ d_i(x, t, y_i) needs no penalty: its attributes are independent by
    construction, from the time `since` on (`AdditiveSince`; 0: all along). It sees `whole` labels alone, which leaves
    open how the sum is divided among its terms; with `whole` false it sees single attributes and none as well, so that
    c is unconditional and weights can sharpen the others.
    """

    steps: int = 0
    batch: int = 256
    rate: float = 2e-3
    average: float = 0.99
    penalty: float = 5.0
    additive: bool = False
    since: float = 0.0
    whole: bool = True
    paths: str = "teachers"
    trajectories: int = 2048
    path_steps: int = 48
    refresh: int = 400
    start: str = "fresh"
    novel: float = 0.5
    guidance: float = 1.0

    def __post_init__(self) -> None:
        check_types(self, "student")
        if self.steps < 0:
            raise UsageError(f"student.steps is {self.steps}; it must not be negative.")
        check_training(max(1, self.steps), self.batch, self.penalty, self.average)
        if self.paths not in PATHS:
            raise unknown("kind of paths", self.paths, PATHS)
        if self.start not in STARTS:
            raise unknown("start of a student", self.start, STARTS)
        if self.start == "expert" and self.additive and self.since == 0:
            raise UsageError(
                "An additive student is no network like an expert and cannot start as one; start it fresh."
            )
        for name in ("trajectories", "path_steps", "refresh"):
            if getattr(self, name) < 2:
                raise UsageError(f"student.{name} is {getattr(self, name)}; it must be at least 2.")
        if not 0 < self.guidance < math.inf:
            raise UsageError(f"student.guidance is {self.guidance}; 1 leaves teachers as they are, 2 sharpens them.")
        if not 0 <= self.since <= 1:
            raise UsageError(f"student.since is {self.since}; a time lies in [0, 1].")
        if not 0 <= self.novel <= 1:
            raise UsageError(f"student.novel is {self.novel}; a share lies in [0, 1].")


@dataclass(frozen=True)
class MixtureSettings:
    """How experts become one field: the `router` and the number of experts that count at once (`top`, 0: all).

    "holders" routes a label to experts that have seen it (DCFM-A); "marginals" by each attribute's statistics (DDM);
    "learned" by a classifier of noised points, trained by the server in `router_steps` on the experts' own samples
    (DDM); "energy" by each expert's energy, times `temperature` (DFD).
    """

    router: str = "holders"
    top: int = 0
    temperature: float = 2.0
    router_steps: int = 1000
    router_samples: int = 2000

    def __post_init__(self) -> None:
        check_types(self, "mixture")
        if self.router not in ROUTERS:
            raise unknown("router", self.router, ROUTERS)
        for name, least in (("top", 0), ("temperature", 0.0), ("router_steps", 1), ("router_samples", 2)):
            if not least <= getattr(self, name) < math.inf:
                raise UsageError(f"mixture.{name} is {getattr(self, name)}; it must be finite, and at least {least}.")


@dataclass(frozen=True)
class Composition:
    """A whole method: how experts are trained, and what is made of them.

    `every` is the number of steps between two answers of a silo, after each of which a run can be saved. `force` goes
    on where coverage does not suffice.
    """

    experts: ExpertSettings = field(default_factory=ExpertSettings)
    federated: FederatedSettings = field(default_factory=FederatedSettings)
    peers: PeerSettings = field(default_factory=PeerSettings)
    student: StudentSettings = field(default_factory=StudentSettings)
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    every: int = 100
    force: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if self.every < 1:
            raise UsageError(f"every is {self.every}; silos answer after one step at the earliest.")
        if self.federated.rounds and (self.peers.rounds or self.student.steps):
            raise UsageError("FedFlow trains one flow, so there are no experts for peers or a student; leave them out.")
        if self.student.paths == "composed" and self.student.steps and not self.peers.rounds:
            raise UsageError("Composed paths need experts that compose; give peers.rounds as well.")

    @property
    def keeps_state_in_silos(self) -> bool:
        """Whether silos hold something that only they know: their experts while they are trained."""
        return not self.federated.rounds
