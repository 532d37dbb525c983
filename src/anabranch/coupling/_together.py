"""Pairs for many holders of one machine, in one pass where their coupling has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from anabranch.coupling._balanced import BalancedPotential
from anabranch.coupling._pairs import Coupling, Pairs, Source
from anabranch.coupling._potential import EntropicPotential, GlobalPotential
from anabranch.coupling._semidiscrete import SemiDiscrete, semidiscrete_pairs
from anabranch.coupling._shared import PotentialCoupling, potential_pairs
from anabranch.data import Samples


def pairs_together(
    couplings: Sequence[Coupling],
    holders: Sequence[Samples],
    source: Source,
    size: int,
    generators: Sequence[torch.Generator],
    shared: torch.Generator,
    workers: int = 1,
) -> list[Pairs] | None:
    """What `draw` gives each holder with its own generator; None where nothing is gained, and nothing drawn then.

    Couplings by a potential must hold the same one. `shared` are the numbers that all holders have alike, and so many
    `workers` solve assignments side by side.
    """
    kinds = {type(coupling) for coupling in couplings}
    if kinds == {SemiDiscrete}:
        return semidiscrete_pairs(cast(Sequence[SemiDiscrete], couplings), holders, size, generators)
    if kinds in ({GlobalPotential}, {EntropicPotential}, {BalancedPotential}):
        by_potential = cast(Sequence[PotentialCoupling], couplings)
        return potential_pairs(by_potential, holders, source, size, generators, shared, workers)
    return None
