"""What server and silos agree on before experts are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.errors import UsageError, unknown
from anabranch.federation import SCHEDULES, ServerOptimizer
from anabranch.flow.conditioning import Masking, Standard
from anabranch.methods._records import check_types

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
PENALTIES = ("all", "pairs")
MOST_LEVELS = 16  # of a UNet
MOST_LAYERS = 1000  # building more takes time, which a silo would spend before it could refuse


@dataclass(frozen=True)
class ExpertSettings:
    """A conditional flow and its training in one silo (DCFM, Stage I).

    The network is a "conditional-mlp" of `layers` with `hidden` units ("silu", which goes on better beyond its data, or
    "selu", which learns faster in many dimensions), or a "conditional-unet" for images of `shape` (channels, height,
    width): a level has `channels` times one of the `multipliers`, and `patch` by `patch` pixels are one place;
    "additive-…" has conditional independence by construction. A UNet that knows the mean `center` and the deviation
    `spread` of the images' numbers learns in a fraction of the steps; 0 for both leaves it to find them. `precision`
    "bfloat16" computes images in it on a GPU that can, and keeps parameters in float32. On a GPU `compile` lets torch
    compile a UNet, which takes a minute and pays for long training.

    `steps` of `batch` samples with Adam; `rate`, `schedule`, `warm_up` and `clip` are its own, `average` is the decay
    of the moving average that an expert is. `full`, `marginal` and `unconditional` are π of eq. (8): how much the loss
    looks at whole labels, at single attributes, and at none. `penalty` is λ of eq. (11): 0 leaves conditional
    independence out, and masks are drawn for each sample instead of being evaluated all. At time t it counts t^`late`:
    attributes may be independent given a clear image and yet depend on each other given a noisy one, where the mean of
    a red 3 is no sum of red and 3. It looks at a share `compared` of each batch, which is evaluated under all masks;
    the rest costs one evaluation each, so that a fourth of it makes a step half as dear. With `independence` "pairs" it
    is an expectation over pairs of attributes: four evaluations beside that of the whole label, however many there are.
    """

    network: str = "conditional-mlp"
    hidden: int = 64
    layers: int = 3
    embedding: int = 16
    activation: str = "silu"
    shape: tuple[int, ...] = ()
    channels: int = 32
    multipliers: tuple[int, ...] = (1, 2, 2)
    patch: int = 1
    center: float = 0.0
    spread: float = 0.0
    precision: str = "float32"
    compile: bool = False
    steps: int = 1200
    batch: int = 256
    rate: float = 2e-3
    schedule: str = "cosine"
    warm_up: int = 0
    clip: float = 0.0
    average: float = 0.99
    full: float = 0.96
    marginal: float = 0.02
    unconditional: float = 0.02
    penalty: float = 0.0
    late: float = 0.0
    compared: float = 1.0
    independence: str = "all"

    def __post_init__(self) -> None:
        check_types(self, "experts")
        check_training(self.steps, self.batch, self.penalty, self.average)
        for kind, known in (("precision", PRECISIONS), ("schedule", SCHEDULES), ("independence", PENALTIES)):
            if getattr(self, kind) not in known:
                raise unknown(kind, getattr(self, kind), known)
        if self.layers > MOST_LAYERS:
            raise UsageError(f"layers is {self.layers}; a network has at most {MOST_LAYERS}.")
        if self.network.endswith("unet") and (len(self.shape) != 3 or min(self.shape) < 1):
            raise UsageError(
                f"The network '{self.network}' is for images, and shape is {list(self.shape)}; give channels, height"
                " and width, as in shape = [3, 28, 28]."
            )
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        if not 1 <= len(self.multipliers) <= MOST_LEVELS or not all(_whole(number) for number in self.multipliers):
            raise UsageError(
                f"multipliers is {list(self.multipliers)}; give a whole number for each level, as in [1, 2, 2], and at"
                f" most {MOST_LEVELS} of them."
            )
        Standard(self.center, self.spread)
        if not 0 <= self.late < math.inf:
            raise UsageError(f"late is {self.late}; the power of time that the penalty counts by is 0 or positive.")
        if not 0 < self.compared <= 1:
            raise UsageError(f"compared is {self.compared}; the penalty looks at a share of the batch in (0, 1].")
        _ = self.masking, self.rule(self.steps)

    @property
    def masking(self) -> Masking:
        """π of eq. (8)."""
        return Masking(self.full, self.marginal, self.unconditional)

    @property
    def dtype(self) -> torch.dtype:
        """The type of number that parameters and points have."""
        return PRECISIONS[self.precision]

    def rule(self, steps: int, rate: float = 0.0) -> ServerOptimizer:
        """How so many steps descend."""
        return ServerOptimizer("adam", rate or self.rate, self.schedule, steps, self.warm_up, self.clip)

    def steady_rule(self, rate: float) -> ServerOptimizer:
        """How steps descend whose rate somebody else schedules."""
        return ServerOptimizer("adam", rate, "constant", clip=self.clip)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def check_training(steps: int, batch: int, penalty: float, average: float) -> None:
    """Refuses what no training can be."""
    for name, value in (("steps", steps), ("batch", batch)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1.")
    if not 0 <= penalty < math.inf:
        raise UsageError(
            f"The penalty λ on conditional dependence is {penalty}; it must be 0 (none) or a positive number."
        )
    if not 0 <= average < 1:
        raise UsageError(f"average is {average}; the decay of a moving average lies in [0, 1).")
