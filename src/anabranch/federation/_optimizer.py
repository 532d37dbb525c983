"""Server optimisers: what is done with an aggregated gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError, unknown

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server follows an aggregate: "adam" or "sgd", a `rate`, its `schedule` over `rounds`, an optional clip.

    A `warm_up` of k rounds raises the rate linearly; "cosine" lets it fall towards zero at the end. `clip` bounds the
    norm of the aggregate, not of any silo's answer.
    """

    name: str = "adam"
    rate: float = 1e-3
    schedule: str = "constant"
    rounds: int = 1
    warm_up: int = 0
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise unknown("optimiser", self.name, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise UsageError(f"A learning rate of {self.rate} was given; it must be a positive number.")

        for name in ("clip", "warm_up"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"A {name} of {getattr(self, name)} was given; it must not be negative.")

    def rate_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …"""
        rate = self.rate * min(1.0, (step + 1) / self.warm_up) if self.warm_up else self.rate
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, self.rounds))))
        return rate

    def begin(self, parameters: dict[str, Tensor]) -> OptimizerState:
        """Starts on these parameters, which are then changed in place."""
        return OptimizerState(self, parameters)


class OptimizerState:
    """Parameters on their way, with the optimiser's moments."""

    def __init__(self, settings: ServerOptimizer, parameters: dict[str, Tensor]) -> None:
        self.settings = settings
        self.parameters = parameters
        self.steps = 0
        leaves = list(parameters.values())
        if settings.name == "adam":
            self._optimizer: torch.optim.Optimizer = torch.optim.Adam(leaves, lr=settings.rate, fused=True)
        else:
            self._optimizer = torch.optim.SGD(leaves, lr=settings.rate)

    def step(self, gradients: dict[str, Tensor]) -> None:
        """One step against the gradients (by name); to ascend, pass them negated."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name]
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.clip)
        self._optimizer.param_groups[0]["lr"] = self.settings.rate_at(self.steps)
        self._optimizer.step()
        self.steps += 1

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Parameters and moments as named tensors for a checkpoint."""
        moments = self._optimizer.state_dict()["state"]
        names = list(self.parameters)
        return {
            **{f"{prefix}/value/{name}": p.detach().clone() for name, p in self.parameters.items()},
            **{
                f"{prefix}/moment/{names[i]}/{key}": torch.as_tensor(value).clone()
                for i, moment in moments.items()
                for key, value in moment.items()
                if value is not None
            },
            f"{prefix}/steps": torch.tensor(self.steps),
        }

    def load(self, prefix: str, state: dict[str, Tensor]) -> None:
        """Continues from `state`, to the bit."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[f"{prefix}/value/{name}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for i, name in enumerate(self.parameters):
            start = f"{prefix}/moment/{name}/"
            found = {key[len(start) :]: t.clone() for key, t in state.items() if key.startswith(start)}
            if found:
                moments[i] = found
        packed = self._optimizer.state_dict()
        self._optimizer.load_state_dict({**packed, "state": moments})
        self.steps = int(state[f"{prefix}/steps"])
