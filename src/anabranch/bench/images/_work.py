"""What is measured: a network, some silos with batches of theirs, and how long to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from anabranch.errors import UsageError, unknown
from anabranch.flow import has_bfloat16
from anabranch.flow.unet import ImageUNet
from anabranch.methods.ffm import (
    FlowMatching,
    FlowSettings,
    ImageSettings,
    PotentialSettings,
    SemiDiscreteSettings,
    preset,
)

METHODS = ("vanilla", "lot", "got", "got-balanced", "got-entropic", "sd")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("bfloat16", "float32")
OPTIONS = ("shape", "channels", "multipliers", "blocks", "attention", "dropout")  # of a UNet
DESCENT_STEPS = 5  # of GOT's c-transform, whose potential is updated at every step (FFM, App. C.2)
POOL, EPSILON = 1.25, 5.0  # of balanced and of entropic GOT, as in the recipe of CIFAR-10


@dataclass(frozen=True)
class Case:
    """So many silos with so many images of each in a step."""

    silos: int
    batch: int

    def __post_init__(self) -> None:
        if self.silos < 1 or self.batch < 1:
            raise UsageError(f"{self.silos} silos with {self.batch} images each were asked for; one is the least.")

    @property
    def name(self) -> str:
        """As it is printed: 3x128."""
        return f"{self.silos}x{self.batch}"


@dataclass(frozen=True)
class ImageWork:
    """The network of `images`, trained by every method in `cases`; `held` images in all silos together.

    A step is taken `warm_up` times, then timed in `turns` of up to `steps`, about `seconds` in all. Sampling takes
    `evaluations` Euler steps of `samples` images. The loss is that of `loss_steps` steps in the first case. GOT chooses
    among `candidates`. `table` is how many pairs the semi-discrete coupling is given to draw from, and `fit` the
    rounds, of so many `lookups`, that fit its duals: enough to share noises among the silos, not to converge.
    `product` is the side of the matrices whose product is the roofline.
    """

    device: torch.device
    images: ImageSettings
    cases: tuple[Case, ...]
    held: int
    precision: str = "bfloat16"
    methods: tuple[str, ...] = METHODS
    warm_up: int = 3
    steps: int = 10
    turns: int = 3
    seconds: float = 15.0
    samples: int = 1000
    evaluations: int = 10
    loss_steps: int = 2000
    candidates: int = 128
    lookups: int = 4096
    fit: int = 20
    table: int = 2**13
    product: int = 8192

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        for method in self.methods:
            if method not in METHODS:
                raise unknown("method", method, METHODS)
        for name in ("warm_up", "steps", "turns", "samples", "evaluations"):
            if getattr(self, name) < 1:
                raise UsageError(f"{getattr(self, name)} was given for {name}; one is the least.")
        if self.loss_steps < 4:
            raise UsageError(f"The loss of {self.loss_steps} steps was asked for; its last quarter needs four or more.")
        self.ghost()  # what cannot be built is refused before anything is measured

    @property
    def half(self) -> bool:
        """Whether passes are computed in bfloat16, which needs a GPU that can."""
        return self.precision == "bfloat16" and has_bfloat16(self.device)

    @property
    def dimension(self) -> int:
        """Numbers of an image."""
        return prod(self.images.shape)

    @property
    def network(self) -> dict[str, Any]:
        """What the network is made of, as options of a UNet."""
        return {name: getattr(self.images, name) for name in OPTIONS}

    def ghost(self) -> ImageUNet:
        """The network without its numbers."""
        with torch.device("meta"):
            return ImageUNet(self.dimension, **self.network)

    @property
    def of_the_paper(self) -> bool:
        """Whether limits hold for it: the paper's network for CIFAR-10, in half precision on a GPU."""
        return self.half and self.images == PAPER

    def settings(self, method: str, case: Case, precision: str | None = None, warm_up: int = 500) -> FlowMatching:
        """Federated flow matching with this method as the paper trains CIFAR-10: Adam at 2e-4, clipped at 1.

        `warm_up` is the steps over which the rate rises to that.
        """
        base, size = preset(method), case.batch
        flow = FlowSettings(
            network="unet",
            precision=precision or self.precision,
            rounds=10**9,
            batch=size,
            rate=2e-4,
            schedule="constant",
            warm_up=warm_up,
            clip=1.0,
            average=0.9999,
        )
        coupling = replace(base.coupling, candidates=self.candidates, transform="descent", descent_steps=DESCENT_STEPS)
        coupling = replace(coupling, pool=POOL, epsilon=EPSILON)
        potential = PotentialSettings(
            network="cnn-potential", before=0, every=1, batch=size, rate=1e-4, schedule="constant"
        )
        semidiscrete = SemiDiscreteSettings(
            rounds=self.fit, count=self.lookups, noises=self.table, block=min(self.table, 8192)
        )
        return FlowMatching(flow, coupling, potential, semidiscrete, self.images)

    def record(self) -> dict[str, Any]:
        """The network and its precision: what figures must share to stand in one file."""
        return {**network_record(self.images), "precision": self.computed}

    @property
    def computed(self) -> str:
        """The precision that passes are computed in."""
        return "bfloat16" if self.half else "float32"


PAPER = ImageSettings(shape=(3, 32, 32))
TINY = ImageSettings(shape=(3, 8, 8), channels=16, multipliers=(1, 2), blocks=1, attention=(4,))
SCALES = ("paper", "tiny")
_BRIEF: dict[str, Any] = {
    "warm_up": 1,
    "steps": 3,
    "turns": 2,
    "seconds": 1.0,
    "samples": 32,
    "evaluations": 3,
    "loss_steps": 40,
    "candidates": 16,
    "lookups": 256,
    "fit": 30,
    "table": 2048,
    "product": 256,
}


def work_of(device: str = "auto", scale: str | None = None, channels: int | None = None, **changes: Any) -> ImageWork:
    """The usual work: the paper's network and silos on a GPU, something tiny on a CPU; with these changes.

    >>> work_of("cpu").images.shape, [case.name for case in work_of("cpu").cases]
    ((3, 8, 8), ['2x8', '3x4'])
    """
    place = device_of(device)
    scale = scale or ("paper" if place.type == "cuda" else "tiny")
    if scale == "paper":
        work = ImageWork(place, PAPER, (Case(3, 128), Case(32, 32)), held=50_000)
    elif scale == "tiny":
        work = ImageWork(place, TINY, (Case(2, 8), Case(3, 4)), held=480, **_BRIEF)
    else:
        raise unknown("scale", scale, SCALES)
    if channels is not None:
        work = replace(work, images=replace(work.images, channels=channels))
    return replace(work, **changes)


def network_record(images: ImageSettings) -> dict[str, Any]:
    """What a network is made of, as JSON gives it back."""
    found = {name: getattr(images, name) for name in OPTIONS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def device_of(name: str) -> torch.device:
    """ "auto" is a GPU where there is one, and the CPU otherwise."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("A GPU was asked for, and there is none here that torch can use; take 'auto' or 'cpu'.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def cases_of(silos: Sequence[int], batches: Sequence[int], usual: Sequence[Case]) -> tuple[Case, ...]:
    """Silos and batches side by side; where one of the two is not given, that of the first usual case.

    >>> [case.name for case in cases_of([3, 32], [128, 32], [])]
    ['3x128', '32x32']
    """
    if not silos and not batches:
        return tuple(usual)
    many = max(len(silos), len(batches))
    silos, batches = silos or [usual[0].silos] * many, batches or [usual[0].batch] * many
    if len(silos) != len(batches):
        raise UsageError(
            f"{len(silos)} numbers of silos and {len(batches)} batches were given. Give as many of both, side by side:"
            " --silos 3,32 --batch 128,32."
        )
    return tuple(Case(count, batch) for count, batch in zip(silos, batches, strict=True))
