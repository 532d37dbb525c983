"""Memory that ran out, told from other errors and said in a sentence."""

from __future__ import annotations

import torch

from anabranch.errors import ExhaustedError

_WORDS = ("out of memory", "can't allocate memory", "not enough memory")  # torch's own, of a GPU and of a CPU


def out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | ExhaustedError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def exhausted(kind: str) -> ExhaustedError:
    """The error for a question that memory did not suffice for."""
    return ExhaustedError(
        f"Memory ran out while silos answered '{kind}'. Lower the batch, or the size of the network; a run that was"
        " saved goes on from there with 'anabranch resume', once other programs leave it more."
    )
