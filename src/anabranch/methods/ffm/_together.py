"""Pairs of many silos of one machine in one pass, for couplings that ask a network or make noises."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anabranch.coupling import Pairs, pairs_together
from anabranch.federation import Silo
from anabranch.methods.ffm._half import FlowHalf


def draw_all(
    silos: Sequence[Silo], halves: Sequence[FlowHalf], generators: Sequence[torch.Generator], workers: int = 1
) -> list[Pairs] | None:
    """The pairs that each silo's half would `draw`; None where the coupling has no pass for all, or lacks its pairs.

    All silos hold the same potential: it came with the question, or was handed to all of them.
    """
    couplings = [half.coupling for half in halves if half.coupling is not None]
    if len(couplings) < len(halves):
        return None
    size = halves[0].settings.flow.batch
    for silo in silos:
        silo.rests_on(min(size, len(silo)))
    holders, shared = [half.data for half in halves], silos[0].shared_generator("pool", 0)
    return pairs_together(couplings, holders, halves[0].source, size, generators, shared, workers)
