"""The exponential moving average of a network's parameters: what sampling uses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anabranch.errors import CheckpointError, UsageError

_PREFIX = "average."


class MovingAverage:
    """θ̄ ← d_k θ̄ + (1 − d_k) θ after each step, starting from a copy of θ.

    d_k = min(decay, (1 + k) / (10 + k)) with k the number of updates so far, so that the first, poor
    parameters are soon forgotten; d_k = decay without `warm_up`. Tensors that are not floating-point are
    copied, not averaged.

    >>> average = MovingAverage({"w": torch.zeros(1)}, decay=0.5, warm_up=False)
    >>> average.update({"w": torch.ones(1)})
    >>> average.parameters["w"], average.count
    (tensor([0.5000]), 1)
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float = 0.999, warm_up: bool = True) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"A moving average cannot have decay = {decay}. Give a number from 0 to below 1.")
        self.decay = decay
        self.warm_up = warm_up
        self.count = 0
        self._average = {name: value.detach().clone() for name, value in parameters.items()}
        self._averaged = [name for name, value in self._average.items() if value.is_floating_point()]
        self._copied = [name for name, value in self._average.items() if not value.is_floating_point()]
        places = {value.device for value in self._average.values()}
        on_a_gpu = len(places) == 1 and next(iter(places)).type == "cuda"
        self._part: float | Tensor = torch.zeros((), device=places.pop()) if on_a_gpu else 0.0

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The averages themselves, not copies: the next update changes them in place."""
        return dict(self._average)

    def update(self, parameters: Mapping[str, Tensor]) -> None:
        """Take in the parameters after one more step of training."""
        self._check(parameters)
        self.aim()
        self.blend(parameters)
        self.count += 1

    def aim(self) -> None:
        """Sets how much of the next parameters is taken in; on a GPU where a recorded `blend` reads it."""
        decay = min(self.decay, (1 + self.count) / (10 + self.count)) if self.warm_up else self.decay
        if isinstance(self._part, Tensor):
            self._part.fill_(1 - decay)
        else:
            self._part = 1 - decay

    @torch.no_grad()
    def blend(self, parameters: Mapping[str, Tensor]) -> None:
        """The arithmetic of an update: it changes tensors alone, and can be recorded as a CUDA graph."""
        averages = [self._average[name] for name in self._averaged]
        current = [parameters[name].detach() for name in self._averaged]
        # All tensors in one call: many small ones would each pay for a kernel launch.
        if isinstance(self._part, Tensor):
            torch._foreach_add_(averages, torch._foreach_mul(torch._foreach_sub(current, averages), self._part))
        elif averages:
            torch._foreach_lerp_(averages, current, self._part)
        for name in self._copied:
            self._average[name].copy_(parameters[name])

    def state(self) -> dict[str, Tensor]:
        """A copy of all that `load` needs to go on to the same bits."""
        copies = {_PREFIX + name: value.clone() for name, value in self._average.items()}
        return {"count": torch.tensor(self.count), **copies}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a state that `state` gave."""
        expected = {"count", *(_PREFIX + name for name in self._average)}
        if set(state) != expected:
            raise CheckpointError(
                f"This is not the state of this moving average: {_difference(expected, set(state))}. "
                "Load one that was saved for the same network."
            )
        for name, value in self._average.items():
            saved = state[_PREFIX + name]
            if saved.shape != value.shape or saved.dtype != value.dtype:
                raise CheckpointError(
                    f"The average saved for '{name}' is {tuple(saved.shape)} of {saved.dtype}, but here it "
                    f"is {tuple(value.shape)} of {value.dtype}. Load one that was saved for the same network."
                )
        for name, value in self._average.items():
            value.copy_(state[_PREFIX + name])
        self.count = int(state["count"])

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        if parameters.keys() != self._average.keys():
            difference = _difference(set(self._average), set(parameters))
            raise UsageError(f"The average is over other parameters: {difference}. Give the same names each time.")
        for name, value in self._average.items():
            if parameters[name].shape != value.shape:
                raise UsageError(
                    f"The parameter '{name}' had shape {tuple(value.shape)} and now has "
                    f"{tuple(parameters[name].shape)}. Start a new average for another network."
                )


def _difference(expected: set[str], given: set[str]) -> str:
    missing = [f"'{name}' is missing" for name in sorted(expected - given)[:1]]
    extra = [f"'{name}' is not known" for name in sorted(given - expected)[:1]]
    return " and ".join(missing + extra)
