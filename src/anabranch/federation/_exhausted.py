"""Memory that ran out, said in a sentence."""

from __future__ import annotations

from anabranch.errors import GOES_ON, ExhaustedError


def exhausted(kind: str) -> ExhaustedError:
    """The error for a question that memory did not suffice for."""
    return ExhaustedError(
        f"Memory ran out while silos answered '{kind}'. Lower the batch, or the size of the network;"
        f" {GOES_ON} goes on with a run from where it was saved, once other programs leave it more."
    )
