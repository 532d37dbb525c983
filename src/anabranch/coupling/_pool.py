"""The pool: candidates that all holders have alike in a round."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.coupling._pairs import Precise, Source
from anabranch.coupling._stream import Stream
from anabranch.data import Shape

BY_NUMBER = 256  # uniform numbers of a point, from which on candidates are drawn by number where they are used


def shared_points(source: Source, count: int, shared: torch.Generator, device: torch.device) -> Tensor:
    """The first `count` candidates, on the device: whoever asks for fewer gets the beginning of what others get.

    Points of many numbers, such as images, come from a stream whose seed the shared generator chooses. So they are the
    same on every machine up to the last digits, need not be drawn on a CPU, and need not travel to a GPU, which would
    wait for them. Points of few numbers, and those of a cloud, which gives each but once, come from the generator.
    """
    inner = source.source if isinstance(source, Precise) else source
    if not isinstance(inner, Shape) or inner.uniforms < BY_NUMBER:
        return source.points(count, shared).to(device)
    seed = int(torch.randint(2**63 - 1, (), generator=shared, device=shared.device))
    drawn = Stream(inner, seed).points(torch.arange(count, device=device))
    return drawn.to(source.dtype) if isinstance(source, Precise) else drawn
