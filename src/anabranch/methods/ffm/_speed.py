"""How networks of images are computed on a GPU: switches that change the time, and of the numbers only the rounding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeVar
from weakref import WeakSet

import torch
from torch import nn

from anabranch.errors import AnabranchError
from anabranch.federation import out_of_memory
from anabranch.methods.ffm._settings import IMAGE_NETWORKS, FlowMatching

LOG = logging.getLogger(__name__)
T = TypeVar("T")

BACKEND = "inductor"  # of torch.compile
CHANNELS_LAST = False  # how maps lie in a GPU's memory; compiled code chooses by itself
_GIVEN_UP: WeakSet[nn.Module] = WeakSet()  # networks that could not be compiled
AUTO_ROWS = 2**18  # images that are sampled before compiling has paid for itself, about


def of_images(settings: FlowMatching, device: torch.device) -> bool:
    """Whether the flow's network is one for images, on a GPU."""
    return device.type == "cuda" and settings.flow.network in IMAGE_NETWORKS


def layout(settings: FlowMatching, device: torch.device) -> dict[str, object]:
    """Options of the flow's network that say how its maps lie in memory there."""
    return {"channels_last": True} if CHANNELS_LAST and of_images(settings, device) else {}


def compiles(settings: FlowMatching, device: torch.device) -> bool:
    """Whether the flow's network is compiled there: if asked for, and with "auto" for images on a GPU that can."""
    chosen = settings.flow.compile
    if isinstance(chosen, bool):
        return chosen
    return of_images(settings, device) and find_spec("triton") is not None


def compile_in_place(module: nn.Module) -> None:
    """From now on the module's passes are compiled; they still read its parameters, whichever these are."""
    if module._compiled_call_impl is None and module not in _GIVEN_UP:
        module.compile(backend=BACKEND)


def attempt(module: nn.Module, compute: Callable[[], T]) -> T:
    """What `compute` makes of the module; where its compiled passes fail, once more without, and from then on."""
    if module._compiled_call_impl is None:
        return compute()
    try:
        return compute()
    except AnabranchError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        module._compiled_call_impl = None
        _GIVEN_UP.add(module)
        LOG.warning("The network could not be compiled here (%s); it is computed without.", type(error).__name__)
        LOG.debug("why it could not be compiled", exc_info=error)
    return compute()


@contextmanager
def tuned(settings: FlowMatching, device: torch.device) -> Iterator[None]:
    """Within, a GPU's convolutions are computed in the way that was fastest when tried; with the precision "tf32",
    products of matrices are rounded as well. What was set before holds again afterwards."""
    if not of_images(settings, device):
        yield
        return
    benchmark, products = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    if settings.flow.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(products)
