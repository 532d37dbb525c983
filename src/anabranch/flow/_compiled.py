"""Networks compiled by torch where it can; where it cannot they are computed as they stand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from torch import nn

from anabranch.errors import AnabranchError, brief, out_of_memory

LOG = logging.getLogger(__name__)
T = TypeVar("T")

BACKEND = "inductor"  # of torch.compile
_GIVEN_UP: WeakSet[nn.Module] = WeakSet()  # networks that could not be compiled


def compile_in_place(module: nn.Module, *, channels_last: bool = False) -> None:
    """From now on the module's passes are compiled; they still read its parameters, whichever these are.

    Another number of rows is compiled for anew, unless who calls has marked rows as of any number
    (`torch._dynamo.maybe_mark_dynamic`): torch would take a second number for a sign that there may be any, and compile
    slower code for all that follow. A ninth number is not compiled for (torch's `recompile_limit`): give few.

    With `channels_last` the colours of a place lie together in all maps inside. Inductor decides so by itself for many
    networks, but not for one that has a convolution to half its channels or fewer, such as a UNet's head.
    """
    if module._compiled_call_impl is None and module not in _GIVEN_UP:
        options = {"force_layout_optimization": True} if channels_last and BACKEND == "inductor" else None
        module.compile(backend=BACKEND, dynamic=False, options=options)


def is_compiled(module: nn.Module) -> bool:
    """Whether its passes are."""
    return module._compiled_call_impl is not None


def attempt(module: nn.Module, compute: Callable[[], T]) -> T:
    """What `compute` makes of the module; where its compiled passes fail, once more without, and from then on."""
    if not is_compiled(module):
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
        LOG.warning("The network could not be compiled here, and is computed without: %s", brief(error))
        LOG.debug("why it could not be compiled", exc_info=error)
    return compute()
