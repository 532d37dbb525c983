"""All randomness: named generators derived from one seed.

A generator depends on the seed and on names (a silo, a purpose, a round), never on who asked before. So a run
repeats, resumes half-way to the same result, and does not care about the engine or the order of the silos.
"""

from __future__ import annotations

from hashlib import blake2b

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed from a seed and any names.

    >>> derive(0, "batch", 7) == derive(0, "batch", 7), derive(0, "batch", 7) == derive(0, "batch", 8)
    (True, False)
    """
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by `derive`. On a CPU it gives the same numbers on every machine, on a GPU others."""
    return torch.Generator(device).manual_seed(derive(seed, *names))
