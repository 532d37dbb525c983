"""What can be chosen in a federated Wasserstein distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.errors import UsageError, unknown
from anabranch.methods.fedwad._views import VIEWS

STARTS = ("statistics", "gaussian")
REVEALS = ("end", "each round")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class WadSettings:
    """One distance (FedWAD, Algorithm 1).

    The measure ξ has `support` atoms and is refined for `rounds`, or until it stops changing by more than the share
    `tolerance` of the distance (0: all rounds). `power` is the p of W_p. `exact` sends every cell of a plan (eq. 5),
    with at most 4(n + m) of them, instead of one atom for each of ξ (eq. 10). `t` places each interpolation; by default
    every side draws its own. ξ starts as a Gaussian, with the silos' mean and scale ("statistics") or with none
    ("gaussian"). `reveal` says when silos tell their distance to ξ. `bounds` asks for what the debiased value and the
    lower bound need. `view` is what of a silo's data is compared; numbers travel in the `precision`.
    """

    support: int = 100
    rounds: int = 20
    power: float = 2.0
    exact: bool = False
    t: float | None = None
    start: str = "statistics"
    tolerance: float = 0.0
    reveal: str = "end"
    bounds: bool = True
    directions: int = 64
    bins: int = 32
    view: str = "points"
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, least in (("support", 1), ("rounds", 1), ("directions", 1), ("bins", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; give {least} or more.")
        if not (self.power >= 1 and math.isfinite(self.power)):
            raise UsageError(f"p = {self.power} was given; W_p is a distance for finite p ≥ 1.")
        if self.t is not None and not 0 < self.t < 1:
            raise UsageError(
                f"t = {self.t} was given; it must lie strictly inside (0, 1): at its ends a silo would send its points,"
                " or nothing new."
            )
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance}; it is a share of the distance, in [0, 1).")
        for value, known, kind in (
            (self.start, STARTS, "start"),
            (self.reveal, REVEALS, "time to reveal distances"),
            (self.precision, PRECISIONS, "precision"),
            (self.view, VIEWS, "view of the data"),
        ):
            if value not in known:
                raise unknown(kind, value, known)
