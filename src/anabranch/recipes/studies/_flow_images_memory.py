"""What to lower where memory does not suffice to look at a flow of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.errors import ExhaustedError, out_of_memory


@contextmanager
def spared(option: str, size: int, what: str) -> Iterator[None]:
    """Within, memory that runs out becomes an error that names the recipe's option."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ExhaustedError(
            f"Memory ran out while {what}, {size} at a time. Lower {option} ({size}) in the recipe, or have other"
            " programs leave more memory, and give the same command again: what was trained is kept."
        ) from error
