"""Work that a GPU is told once and then repeats: to launch its kernels one by one can take longer than to run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from anabranch.errors import brief

LOG = logging.getLogger(__name__)
WARM_UP = 3  # calls before recording, in which libraries choose kernels and code is compiled
T = TypeVar("T")


class Recorded(Generic[T]):
    """A function without arguments whose kernels are recorded on a GPU (a CUDA graph) and replayed.

    It must launch the same kernels at every call: it reads tensors where they lie, which others fill, and no choice of
    it may hang on a number. What it gives lies in one place, too: the next call writes over it. Random numbers of
    `generators`, and of torch's own one of the device, go on from call to call; who seeds them before a call gets the
    numbers that an unrecorded call would draw.

    Nothing is recorded on a CPU, nor where recording fails, which is said in the log once.
    """

    def __init__(
        self, function: Callable[[], T], device: torch.device, generators: Sequence[torch.Generator] = ()
    ) -> None:
        self.function, self.generators = function, tuple(generators)
        # On a stream of its own: products of matrices get their workspace by stream, and what shares one must not run
        # side by side.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: list[T] = []  # what the recording gives
        self._calls = 0

    def __call__(self) -> T:
        if self._graph is None and self.stream is not None and self._calls == WARM_UP:
            self._record()
        self._calls += 1
        if self._graph is None:
            return self.function()
        self._graph.replay()
        return self._found[0]

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            # Other threads may go on with work of their own, on other streams: one that assigns pairs, say.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self._found = [self.function()]
            self._graph = graph
        except RuntimeError as error:  # too little memory for a second copy of what is held, or an unknown kernel
            LOG.warning("Steps could not be recorded on this GPU, and take longer without: %s", brief(error))
