"""What to say when memory runs out: which settings of the phase to lower."""

from __future__ import annotations

from contextlib import AbstractContextManager

from anabranch.errors import GOES_ON, spared
from anabranch.methods.ffm._settings import IMAGE_NETWORKS, POTENTIAL_COUPLINGS, FlowMatching


def spared_phase(settings: FlowMatching, phase: str) -> AbstractContextManager[None]:
    """Within, memory that runs out becomes an error that says what would have needed less."""
    return spared(
        lambda: (
            f"Memory ran out in the phase '{phase}'. To need less, {remedy(settings, phase)}. Once other programs leave"
            f" more memory, {GOES_ON} goes on from the last checkpoint with the run as it is; with another flow.passes,"
            " give the command that began it again. Other settings need a new run."
        )
    )


def remedy(settings: FlowMatching, phase: str) -> str:
    """What to lower, with what it is now."""
    flow, coupling, images = settings.flow, settings.coupling, settings.images
    width = f"images.channels ({images.channels})" if flow.network in IMAGE_NETWORKS else f"flow.hidden ({flow.hidden})"
    pairs = f"potential.batch ({settings.potential.batch}) or coupling.candidates ({coupling.candidates})"
    if phase == "potential":
        return f"lower {pairs}"
    if phase in ("duals", "assign"):
        options = settings.semidiscrete
        return f"lower semidiscrete.block ({options.block}) or semidiscrete.count ({options.count})"
    lower = f"raise flow.passes ({flow.passes}), which changes no result, or lower flow.batch ({flow.batch}) or {width}"
    if settings.potential.every and coupling.name in POTENTIAL_COUPLINGS:
        return f"{lower}; or {pairs}"
    return lower
