"""What can be chosen in federated flow matching. Every section is a flat record that a TOML file can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import torch

from anabranch.coupling import SOLVERS, TRANSFORMS, Coupling, Independent, MinibatchOT
from anabranch.errors import UsageError, unknown

PRECISIONS = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.float32,  # points and parameters; images are computed in it
    "tf32": torch.float32,  # as GPUs round products of matrices
}
MOST_CLASSES = 2**14  # each has a row in the network, which a silo must be able to hold
SHARP = 0.002  # ε that stands for an exact plan: 97 % of what OT gains on images; 0.05, fit for few dimensions, 9 %
LARGEST_ASSIGNMENT = 512  # points a side up to which a GPU is faster served by an exact assignment on the CPU
IMAGE_NETWORKS = frozenset({"unet", "cnn-potential"})
MOST_BLOCKS = 64  # a level; building more takes time, which a silo would spend before it could refuse
POTENTIAL_COUPLINGS = ("potential", "entropic", "balanced")
COUPLINGS: dict[str, CouplingBuilder] = {}  # couplings that need no exchange, by name
Builder = TypeVar("Builder", bound="CouplingBuilder")


class CouplingBuilder(Protocol):
    """Makes a coupling from the settings and the silo's weight λ."""

    def __call__(self, options: CouplingSettings, weight: float) -> Coupling: ...


def register_coupling(name: str) -> Callable[[Builder], Builder]:
    """Makes a function `(options, weight) -> Coupling` known under a name, so that settings can ask for it.

    The silo half runs where the data is: every silo must have registered the coupling before it is asked. Where
    `options.within` is true, the flow is told labels: given a label, x0 must be distributed as the source.
    """

    def register(builder: Builder) -> Builder:
        if name in coupling_names():
            raise UsageError(f"There is already a coupling '{name}'. Register this one under another name.")
        COUPLINGS[name] = builder
        return builder

    return register


def coupling_names() -> list[str]:
    """Every coupling that settings may name."""
    return [*COUPLINGS, *POTENTIAL_COUPLINGS, "semidiscrete"]


@dataclass(frozen=True)
class FlowSettings:
    """The flow and its training.

    `rounds` of `batch` pairs a silo, whose gradient is summed over `passes` if more than one, in less memory. The
    `precision` is float32 or float64; with "bfloat16" images are computed in it on a GPU that can, while parameters and
    points stay float32, and with "tf32" a GPU rounds products of matrices. `compile` lets torch compile the network:
    true, false, or "auto" for images on a GPU. `times` of pairs are uniform, or by the two numbers that it gives: the
    mean and the deviation of log(t / (1 − t)), which is normal then. `optimizer`, `rate`, `schedule`, `warm_up` and
    `clip` act on the aggregate at the server; `average` is the decay of the parameters' moving average, which samples
    come from. With `local_steps` E > 0 silos take E steps of their own at `local_rate` and the server averages
    parameters (FedAvg) instead of gradients. With `classes` C > 0 the flow is told the label of each point, a number
    from 0 to C − 1 that means the same in all silos; it is `withheld` from that share of the pairs, so that the flow
    can also be asked without, and guided.
    """

    source: str = "gaussian"
    network: str = "mlp"
    hidden: int = 64
    layers: int = 3
    precision: str = "float32"
    path: str = "linear"
    sigma: float = 0.0
    times: tuple[float, ...] = ()
    rounds: int = 4000
    batch: int = 256
    passes: int = 1
    compile: bool | str = "auto"
    optimizer: str = "adam"
    rate: float = 2e-3
    schedule: str = "cosine"
    warm_up: int = 0
    clip: float = 0.0
    average: float = 0.999
    local_steps: int = 0
    local_rate: float = 1e-3
    classes: int = 0
    withheld: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.classes <= MOST_CLASSES:
            raise UsageError(
                f"flow.classes is {self.classes}; give the number of classes, {MOST_CLASSES} at most, or 0 for a flow"
                " that is told none."
            )
        if not 0 < self.withheld < 1:
            raise UsageError(
                f"flow.withheld is {self.withheld}; it is a share of the labels, above 0 and below 1: what a flow says"
                " without a label is learned from those."
            )
        if not isinstance(self.compile, bool) and self.compile != "auto":
            raise UsageError(f'flow.compile is {self.compile!r}; write true, false or "auto".')
        if self.passes < 1:
            raise UsageError(f"flow.passes is {self.passes}; a batch is computed in one or more.")
        if self.times and not (len(self.times) == 2 and all(map(math.isfinite, self.times)) and self.times[1] > 0):
            raise UsageError(
                f"flow.times is {list(self.times)}; give a mean and a positive deviation of log(t / (1 - t)), as in"
                " [0.0, 1.0], or nothing for uniform times."
            )

    @property
    def dtype(self) -> torch.dtype:
        """The type of number that networks and points are computed in."""
        return PRECISIONS[self.precision]


@dataclass(frozen=True)
class ImageSettings:
    """Networks for images of `shape` (colours, height, width), which flow.network "unet" needs.

    `channels`, `multipliers`, `blocks`, `attention` (heights of maps) and `dropout` are the UNet's; the defaults are
    torchcfm's for CIFAR-10. `center` and `spread`, the mean and the deviation of all pixels, may be told beforehand.
    """

    shape: tuple[int, ...] = ()
    channels: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    blocks: int = 2
    attention: tuple[int, ...] = (16,)
    dropout: float = 0.1
    center: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.shape and (len(self.shape) != 3 or min(self.shape) < 1):
            raise UsageError(f"images.shape is {list(self.shape)}; give colours, height and width, as in [3, 32, 32].")
        if min(self.channels, self.blocks, *self.multipliers) < 1 or not self.multipliers or self.blocks > MOST_BLOCKS:
            raise UsageError(
                f"A UNet cannot have channels = {self.channels}, multipliers = {list(self.multipliers)} and blocks ="
                f" {self.blocks}; give whole numbers from one, and at most {MOST_BLOCKS} blocks."
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"images.dropout is {self.dropout}; a probability below one is needed.")


@dataclass(frozen=True)
class CouplingSettings:
    """Which x0 meets which x1: the coupling's name and the options of those that have some.

    `solver`, `replacement` and `epsilon` belong to minibatch OT: "exact", "sinkhorn", or "auto", which is exact but for
    batches of more than 512 on a GPU, with ε at most 0.002. `candidates`, `transform`, `descent_steps` and
    `descent_rate` belong to the potential couplings, `epsilon` to the entropic one as well; `pool`, in batches, is the
    most that the balanced one looks at, 0 as many as a silo's weight asks for. `group` is the least number of points
    that an answer of the semi-discrete coupling may rest on: 1 is bare, more is protected. `within` has minibatch OT
    pair the points of each label for themselves; a flow that is told classes always does.
    """

    name: str = "independent"
    solver: str = "auto"
    replacement: bool = False
    epsilon: float = 0.05
    candidates: int = 256
    transform: str = "candidates"
    descent_steps: int = 5
    descent_rate: float = 0.5
    pool: float = 0.0
    group: int = 1
    within: bool = False

    def __post_init__(self) -> None:
        if self.name not in coupling_names():
            raise unknown("coupling", self.name, coupling_names())
        self._check_options()
        if self.pool and not self.pool >= 1:
            raise UsageError(f"coupling.pool is {self.pool}; give 1 or more, in batches, or 0 for no limit.")
        if self.group < 1:
            raise UsageError(f"Groups of {self.group} points were asked for; a group holds at least one.")

    def _check_options(self) -> None:
        """Refuses, by their key, options that the coupling looks at and could not use; others may say anything."""
        minibatch, potential = self.name == "minibatch", self.name in POTENTIAL_COUPLINGS
        descends = potential and self.transform == "descent"
        softly = self.name == "entropic" or (minibatch and self.solver != "exact")
        for key, asked, known in (("solver", minibatch, ("auto", *SOLVERS)), ("transform", potential, TRANSFORMS)):
            if asked and getattr(self, key) not in known:
                raise unknown(f"coupling.{key}", getattr(self, key), known)
        for key, asked in (("epsilon", softly), ("descent_rate", descends)):
            if asked and not 0 < getattr(self, key) < math.inf:
                raise UsageError(f"coupling.{key} is {getattr(self, key)}; give a positive number.")
        for key, asked, least in (("candidates", potential, 1), ("descent_steps", descends, 0)):
            if asked and getattr(self, key) < least:
                raise UsageError(f"coupling.{key} is {getattr(self, key)}; it must be at least {least}.")


@register_coupling("independent")
def _independent(options: CouplingSettings, weight: float) -> Coupling:
    return Independent()


@register_coupling("minibatch")
def _minibatch(options: CouplingSettings, weight: float) -> Coupling:
    solver = "exact" if options.solver == "auto" else options.solver
    return MinibatchOT(solver, options.epsilon, options.replacement, options.within)


@dataclass(frozen=True)
class PotentialSettings:
    """The shared potential: `before` updates ahead of the flow, then one every `every` rounds (0: frozen).

    Its `network` is a "potential-mlp", or for images a "cnn-potential".
    """

    network: str = "potential-mlp"
    hidden: int = 128
    layers: int = 3
    before: int = 5000
    every: int = 0
    batch: int = 256
    rate: float = 2e-3
    schedule: str = "cosine"

    def __post_init__(self) -> None:
        if self.batch < 1 or self.before < 0 or self.every < 0:
            raise UsageError("potential.batch must be at least 1, potential.before and potential.every not negative.")


@dataclass(frozen=True)
class SemiDiscreteSettings:
    """Fitting semi-discrete duals: `rounds` lookups of `count` noises, with steps falling from `first` to `last`
    (in units of the spread of the first minima; in more than 64 dimensions silos find their own, and these two are not
    used), then `noises` in all assigned ahead, `block` at a time. Protected silos fit their own points for
    `local_rounds`, without a word to anybody."""

    rounds: int = 3000
    count: int = 4096
    first: float = 6.0
    last: float = 0.01
    local_rounds: int = 3000
    noises: int = 2**20
    block: int = 2**16

    def __post_init__(self) -> None:
        for name in ("rounds", "count", "local_rounds", "noises", "block"):
            if getattr(self, name) < 1:
                raise UsageError(f"semidiscrete.{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("first", "last"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"semidiscrete.{name} is {getattr(self, name)}; a step must be positive.")


@dataclass(frozen=True)
class FlowMatching:
    """Federated flow matching with any of its couplings: everything that server and silos must agree on."""

    flow: FlowSettings = field(default_factory=FlowSettings)
    coupling: CouplingSettings = field(default_factory=CouplingSettings)
    potential: PotentialSettings = field(default_factory=PotentialSettings)
    semidiscrete: SemiDiscreteSettings = field(default_factory=SemiDiscreteSettings)
    images: ImageSettings = field(default_factory=ImageSettings)

    def __post_init__(self) -> None:
        for name, network in (("flow", self.flow.network), ("potential", self.potential.network)):
            if network in IMAGE_NETWORKS and not self.images.shape:
                raise UsageError(
                    f"{name}.network is '{network}', which is for images, and images.shape is not given; give colours,"
                    " height and width, as in shape = [3, 32, 32]."
                )
        for name in ("rounds", "batch"):
            if getattr(self.flow, name) < 1:
                raise UsageError(f"flow.{name} is {getattr(self.flow, name)}; it must be at least 1.")
        if self.flow.precision not in PRECISIONS:
            raise unknown("precision", self.flow.precision, PRECISIONS)
        if self.flow.local_steps < 0:
            raise UsageError(f"flow.local_steps is {self.flow.local_steps}; it must not be negative.")
        if self.coupling.name in POTENTIAL_COUPLINGS and not (self.potential.before or self.potential.every):
            raise UsageError(
                "With potential.before = 0 and potential.every = 0 the potential would never be trained; raise one."
            )
        if not 0 <= self.flow.average < 1:
            raise UsageError(f"flow.average is {self.flow.average}; a moving average's decay lies in [0, 1).")
        if self.flow.classes and self.coupling.name not in COUPLINGS:
            raise UsageError(
                f"flow.classes is {self.flow.classes}, and the coupling '{self.coupling.name}' gives noise to points of"
                " any class: given a class, noise would no longer be distributed as the source, where samples begin."
                " Take the method 'vanilla', or 'lot', which pairs within a class."
            )
        if self.flow.path == "target" and self.coupling.name != "independent":
            raise UsageError(
                "The path 'target' starts from fresh noise and ignores x0, so a coupling other than 'independent' would"
                " have no effect; choose the path 'linear'."
            )

    def coupling_on(self, gpu: bool) -> CouplingSettings:
        """The coupling, with a solver that fits where it computes."""
        chosen = replace(self.coupling, within=True) if self.flow.classes else self.coupling
        if chosen.solver != "auto":
            return chosen
        if not gpu or self.flow.batch <= LARGEST_ASSIGNMENT:
            return replace(chosen, solver="exact")
        return replace(chosen, solver="sinkhorn", epsilon=min(chosen.epsilon, SHARP))

    @property
    def least_parameters(self) -> int:
        """A lower bound on the parameters of the flow's network for images, found without building it."""
        widest = self.images.channels * max(self.images.multipliers)
        return 2 * 9 * self.images.blocks * widest**2 if self.flow.network in IMAGE_NETWORKS else 0

    @property
    def keeps_state_in_silos(self) -> bool:
        """Whether silos hold something that only they know and cannot go on without: their duals and pairs."""
        return self.coupling.name == "semidiscrete"

    def to_json(self) -> str:
        """All settings as JSON: what is sent to silos."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> FlowMatching:
        """The settings in that JSON; unknown keys are refused."""
        sections: dict[str, Any] = json.loads(text)
        kinds: dict[str, Any] = {
            "flow": FlowSettings,
            "coupling": CouplingSettings,
            "potential": PotentialSettings,
            "semidiscrete": SemiDiscreteSettings,
            "images": ImageSettings,
        }
        for name, section in sections.items():
            if name not in kinds:
                raise unknown("section", name, kinds)
            hints = get_type_hints(kinds[name])
            for key, value in section.items():
                if key not in hints:
                    raise unknown(f"key in [{name}]", key, hints)
                if get_origin(hints[key]) is tuple:
                    section[key] = _numbers(f"{name}.{key}", value, get_args(hints[key])[0])
                else:
                    _check_type(f"{name}.{key}", value, *(get_args(hints[key]) or (hints[key],)))
        return FlowMatching(**{name: kinds[name](**section) for name, section in sections.items()})


def _numbers(name: str, value: object, kind: type) -> tuple[Any, ...]:
    """A short list of numbers, whole ones where `kind` is int."""
    if not isinstance(value, list) or len(value) > 16:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{name} is {str(value)[:40]!r}; a list of a few {what} is needed.")
    for number in value:
        _check_type(name, number, kind)
    return tuple(map(kind, value))


def _check_type(name: str, value: object, *wanted: type) -> None:
    """A whole number may stand for a float; nothing else is turned into anything."""
    if type(value) not in wanted and not (float in wanted and type(value) is int):
        names = " or ".join(one.__name__ for one in wanted)
        raise UsageError(f"{name} is {str(value)[:40]!r}; a value of type {names} is needed.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"{name} is a number of more than 64 bits.")
