"""Server optimisers: what is done with an aggregated gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

from anabranch.errors import UsageError, unknown

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server follows an aggregate: "adam" or "sgd", a `rate`, its `schedule` over `rounds`, an optional clip.

    A `warm_up` of k rounds raises the rate linearly; "cosine" lets it fall towards zero at the end, of the rounds or of
    something else that is spent sooner. `clip` bounds the norm of the aggregate, not of any silo's answer.
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

    def rate_at(self, step: int, spent: float = 0.0) -> float:
        """The learning rate of step 0, 1, …, where training is through to a share of `spent` at least."""
        rate = self.rate * min(1.0, (step + 1) / self.warm_up) if self.warm_up else self.rate
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, max(spent, step / max(1, self.rounds)))))
        return rate

    def begin(self, parameters: dict[str, Tensor]) -> OptimizerState:
        """Starts on these parameters, which are then changed in place."""
        return OptimizerState(self, parameters)


def _laid_out_like(leaf: Tensor, slope: Tensor) -> Tensor:
    """The fused kernel walks both in the order of memory, and a gradient may come transposed."""
    return slope if slope.stride() == leaf.stride() else torch.empty_like(leaf).copy_(slope)


class OptimizerState:
    """Parameters on their way, with the optimiser's moments.

    `spent` is the share of training that is over by something else than steps, by a clock for one: whoever has it
    writes it here, and a falling rate follows whichever is further. It is no part of the state.
    """

    def __init__(self, settings: ServerOptimizer, parameters: dict[str, Tensor]) -> None:
        self.settings = settings
        self.parameters = parameters
        self.steps = 0
        self.spent = 0.0
        first = next(iter(parameters.values()))
        self._rate: float | Tensor = torch.zeros((), device=first.device) if first.is_cuda else 0.0
        self._moments: dict[str, list[Tensor]] = {}
        if settings.name == "adam":
            leaves = [parameter.detach() for parameter in parameters.values()]
            self._moments = {name: [torch.zeros_like(leaf) for leaf in leaves] for name in ("exp_avg", "exp_avg_sq")}
            self._moments["step"] = [torch.zeros((), device=leaf.device) for leaf in leaves]

    def step(self, gradients: dict[str, Tensor], bad: Tensor | None = None) -> None:
        """One step against the gradients (by name); to ascend, pass them negated.

        Where `bad`, a number on the device of the parameters, is 1, Adam leaves parameters and moments as they are.
        """
        self.aim()
        self.move(gradients, bad)
        self.steps += 1

    def aim(self) -> None:
        """Sets the rate of the next move; on a GPU it is written to where a recorded move reads it."""
        rate = self.settings.rate_at(self.steps, self.spent)
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        else:
            self._rate = rate

    @torch.no_grad()
    def move(self, gradients: dict[str, Tensor], bad: Tensor | None = None) -> None:
        """The arithmetic of a step: it changes tensors alone, and can be recorded as a CUDA graph."""
        leaves = [parameter.detach() for parameter in self.parameters.values()]
        slopes = [_laid_out_like(leaf, gradients[name]) for name, leaf in zip(self.parameters, leaves, strict=True)]
        if self.settings.clip:
            norm = torch.stack(torch._foreach_norm(slopes)).norm()
            factor = (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)
            slopes = list(torch._foreach_mul(slopes, factor))
        if self.settings.name == "adam":
            self._adam(leaves, slopes, self._rate, bad)
        elif bad is not None:
            raise ValueError("only Adam can leave parameters as they are where a number on their device says so")
        elif isinstance(self._rate, Tensor):
            torch._foreach_sub_(leaves, torch._foreach_mul(slopes, self._rate))
        else:
            torch._foreach_add_(leaves, slopes, alpha=-self._rate)

    def _adam(self, leaves: list[Tensor], slopes: list[Tensor], rate: float | Tensor, bad: Tensor | None) -> None:
        # The function under torch.optim.Adam: the class around it takes as long again for a small network.
        moments = self._moments
        adam(
            *(leaves, slopes, moments["exp_avg"], moments["exp_avg_sq"], [], moments["step"]),
            fused=True,
            found_inf=bad,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Parameters and moments as named tensors for a checkpoint."""
        return {
            **{f"{prefix}/value/{name}": p.detach().clone() for name, p in self.parameters.items()},
            **{
                f"{prefix}/moment/{name}/{key}": tensor.clone()
                for key, tensors in self._moments.items()
                for name, tensor in zip(self.parameters, tensors, strict=True)
            },
            f"{prefix}/steps": torch.tensor(self.steps),
        }

    def load(self, prefix: str, state: dict[str, Tensor]) -> None:
        """Continues from `state`, to the bit."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[f"{prefix}/value/{name}"])
            for key, tensors in self._moments.items():
                for name, tensor in zip(self.parameters, tensors, strict=True):
                    tensor.copy_(state[f"{prefix}/moment/{name}/{key}"])
        self.steps = int(state[f"{prefix}/steps"])
