"""Memory that ran out, said in a sentence."""

from __future__ import annotations

from anabranch.errors import ExhaustedError


def exhausted(kind: str) -> ExhaustedError:
    """The error for a question that memory did not suffice for."""
    return ExhaustedError(
        f"Memory ran out while silos answered '{kind}'. Lower the batch, or the size of the network; a run that was"
        " saved goes on from there with 'anabranch resume', or the same 'anabranch reproduce', once other programs"
        " leave it more."
    )
