"""What to lower where memory does not suffice to look at a flow of images."""

from __future__ import annotations

from contextlib import AbstractContextManager

from anabranch.errors import spared


def spared_option(option: str, size: int, what: str) -> AbstractContextManager[None]:
    """Within, memory that runs out becomes an error that names the recipe's option."""
    return spared(
        lambda: (
            f"Memory ran out while {what}, {size} at a time. Have fewer at once, with --set"
            f" {option}={max(1, size // 2)}, or other programs leave more memory, and give the command again: what was"
            " trained is kept."
        )
    )
