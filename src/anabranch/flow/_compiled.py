"""Networks compiled by torch where it can; where it cannot they are computed as they stand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from torch import nn

from anabranch.errors import AnabranchError, out_of_memory

LOG = logging.getLogger(__name__)
T = TypeVar("T")

BACKEND = "inductor"  # of torch.compile
_GIVEN_UP: WeakSet[nn.Module] = WeakSet()  # networks that could not be compiled


def compile_in_place(module: nn.Module) -> None:
    """From now on the module's passes are compiled; they still read its parameters, whichever these are."""
    if module._compiled_call_impl is None and module not in _GIVEN_UP:
        module.compile(backend=BACKEND)


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
        LOG.warning("The network could not be compiled here (%s); it is computed without.", type(error).__name__)
        LOG.debug("why it could not be compiled", exc_info=error)
    return compute()
