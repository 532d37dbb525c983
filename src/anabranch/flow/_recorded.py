"""Work that a GPU is told once and then repeats: to launch its kernels one by one can take longer than to run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from anabranch.errors import RecordingError, brief, out_of_memory

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Recorded(Generic[T]):
    """Calls of one function without arguments, whose kernels a GPU records (a CUDA graph) and replays.

    The function is given at every call, and must be the same: it launches the same kernels, reads tensors where they
    lie, which others fill, and no choice of it may hang on a number. What it gives lies in one place, too: the next
    call writes over it. Random numbers of `generators`, and of torch's own one of the device, go on from call to call;
    who seeds them before a call gets the numbers that an unrecorded call would draw.

    Nothing is recorded on a CPU, nor where memory does not suffice for it, which is said in the log. If recording fails
    in another way, torch's generators and memory are left in the middle of it: a RecordingError, after which nothing
    should be computed on that GPU.
    """

    warm_up = 3  # calls before recording, in which libraries choose kernels and code is compiled

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self.generators = tuple(generators)
        # On a stream of its own: products of matrices get their workspace by stream, and what shares one must not run
        # side by side.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: list[T] = []  # what the recording gives
        self._calls = 0

    @property
    def recorded(self) -> bool:
        """Whether calls are replays by now."""
        return self._graph is not None

    def __call__(self, function: Callable[[], T]) -> T:
        if self._graph is None and self.stream is not None and self._calls == self.warm_up:
            with torch.cuda.device(self.stream.device):
                self._record(function, self.stream)
        self._calls += 1
        if self._graph is None:
            return function()
        self._graph.replay()
        return self._found[0]

    def _record(self, function: Callable[[], T], stream: torch.cuda.Stream) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            # Other threads may go on with work of their own, on other streams: one that assigns pairs, say.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._found = [function()]
            self._graph = graph
        except RuntimeError as error:
            if not out_of_memory(error):
                raise RecordingError(
                    f"A step could not be recorded on this GPU: {brief(error)}. Flows of images do without it where"
                    " flow.compile is false."
                ) from error
            LOG.warning("Memory does not suffice to record steps on this GPU; they take longer without.")
