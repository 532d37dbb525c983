"""What DCFM sends beyond its experts. With the messages of `experts`, this page is its whole privacy surface."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import Message
from anabranch.methods.dcfm._settings import PeerSettings


@dataclass(frozen=True)
class PeerSteps(Message, kind="dcfm.peers"):
    """DCFM-A: asks a silo to train its expert for `steps` beside those that it was handed, and to share it.

    `met` says for each peer which outcomes it has met: all attributes' outcomes in a row, as 0 or 1. `early`, `late`
    and `held` are those of `PeerSettings`.

    Reveals: to the silo, which outcomes each of its peers has met.
    """

    met: dict[str, Tensor]
    steps: int
    penalty: float
    rate: float
    early: float = 0.0
    late: float = 0.0
    held: bool = False

    @classmethod
    def of(cls, settings: PeerSettings, met: dict[str, Tensor], steps: int) -> PeerSteps:
        """So many steps, as the settings say."""
        compared = (settings.early, settings.late, settings.held)
        return cls(met, steps, settings.penalty, settings.rate, *compared)

    def check(self, outcomes: int) -> None:
        """Refuses rows that do not speak of so many outcomes, and negative numbers where there are none."""
        for name, value in (("penalty", self.penalty), ("early", self.early), ("late", self.late)):
            if value < 0:
                raise MessageError(f"'{self.kind}' arrived with {name} = {value}, which is not 0 or more.")
        for name, row in self.met.items():
            if row.dtype != torch.bool or row.shape != (outcomes,):
                raise MessageError(f"'{self.kind}' arrived with outcomes of '{name}' that are not {outcomes} truths.")


@dataclass(frozen=True)
class Adopt(Message, kind="dcfm.adopt"):
    """Hands a silo the student that was distilled from all experts.

    Reveals: a generative model of all silos' samples, as far as their experts know them.
    """

    parameters: dict[str, Tensor]
