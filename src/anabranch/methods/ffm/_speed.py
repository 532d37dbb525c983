"""How networks of images are computed on a GPU: switches that change the time, and of the numbers only the rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from anabranch.flow import compile_in_place, convolutions, is_compiled
from anabranch.methods.ffm._settings import IMAGE_NETWORKS, FlowMatching

AUTO_ROWS = 2**18  # images that are sampled before compiling has paid for itself, about


def of_images(settings: FlowMatching, device: torch.device) -> bool:
    """Whether the flow's network is one for images, on a GPU."""
    return device.type == "cuda" and settings.flow.network in IMAGE_NETWORKS


def layout(settings: FlowMatching, device: torch.device) -> dict[str, object]:
    """Options of networks of images that say how their maps lie in memory there.

    On a GPU the colours of a place lie together, as convolutions of tensor cores want them.
    """
    return {"channels_last": True} if of_images(settings, device) else {}


def compile_flow(module: nn.Module, settings: FlowMatching, device: torch.device) -> None:
    """Has passes of the flow's network compiled, if it is to be compiled there."""
    if compiles(settings, device):
        # What is compiled is kept on disk under all of torch's switches, of which this one is spelled in another way
        # once somebody has set it: spelled so from the start, it is found again.
        torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
        compile_in_place(module)


def records(module: nn.Module, settings: FlowMatching, device: torch.device) -> bool:
    """Whether passes of the flow's network are recorded there: of images on a GPU, where they are compiled.

    On an H200 with torch 2.11 a step with 3 x 128 images of the paper's network takes 43.7 ms so, and the GPU computes
    in 97 of 100 of them. Where its some 1 400 kernels were launched one by one, the profiler saw it idle half the time.
    """
    return of_images(settings, device) and is_compiled(module)


def compiles(settings: FlowMatching, device: torch.device) -> bool:
    """Whether the flow's network is compiled there: if asked for, and with "auto" for images on a GPU that can."""
    chosen = settings.flow.compile
    if isinstance(chosen, bool):
        return chosen
    return of_images(settings, device) and find_spec("triton") is not None


@contextmanager
def tuned(settings: FlowMatching, device: torch.device, exact: bool = False) -> Iterator[None]:
    """Within, a GPU's convolutions are computed in the way that was fastest when tried; with the precision "tf32",
    products of matrices are rounded as well, and if it is to be `exact`, no products of 32 bits are, not even those of
    convolutions. What was set before holds again afterwards."""
    if not of_images(settings, device):
        yield
        return
    products = torch.get_float32_matmul_precision()
    if exact or settings.flow.precision == "tf32":
        torch.set_float32_matmul_precision("highest" if exact else "high")
    try:
        with convolutions("ieee" if exact else None, tried=True):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
