"""All benchmarks in one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from anabranch.bench._clock import Budget
from anabranch.bench._couplings import coupling_rows, lookup_rows
from anabranch.bench._peer import missing
from anabranch.bench._row import Measured
from anabranch.bench._steps import Watch, sampling_rows, step_rows

THREADS = 2


def measure(budget: Budget | None = None, watch: Watch = lambda what: None) -> Measured:
    """Measures everything with two threads; `watch` is told what is measured now. Without torchcfm our side is measured
    alone, and limits on how it compares are left out.

    Times mean something on a machine that does nothing else.
    """
    turns = budget or Budget()
    short = Budget(turns.seconds / 4, turns.repeats)  # what takes a millisecond fills a short turn well enough
    measured = Measured(note=missing())
    with _undisturbed():
        for rows, length in ((step_rows, turns), (coupling_rows, short), (lookup_rows, short), (sampling_rows, short)):
            measured.rows += rows(length, watch)
    return measured


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Two threads within; afterwards as many as before, and the global random numbers, which the peer uses, too."""
    threads, legacy = torch.get_num_threads(), np.random.get_state()
    torch.set_num_threads(THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(legacy)
