"""One pass of a flow's network, forward and back: the gradient of a weighted error."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anabranch.flow import PathSample, Recorded
from anabranch.methods.ffm._rounding import copied


class RecordedPass:
    """∇ of Σ_n w_n ‖v(x_n, t_n) − u_n‖² in the parameters of a field, for so many points as there were at first.

    A GPU is told the pass once and repeats it (`Recorded`). All that a pass reads is copied to where the recording
    expects it, parameters in the type `dtype` that passes are computed in, which rounds them on the way; gradients
    come back in the parameters' own. So one pass serves all silos of a process. A recording keeps the memory of a
    whole pass: a process has one at a time (`shared_pass`), and lets go of it to sample (`forget_pass`).
    """

    def __init__(self, field: nn.Module, parameters: dict[str, Tensor], dtype: torch.dtype, sample: PathSample) -> None:
        self.field, self.names = field, tuple(parameters)
        self.dtypes = [parameter.dtype for parameter in parameters.values()]
        self.parameters = [torch.empty_like(p, dtype=dtype, requires_grad=True) for p in parameters.values()]
        self.sample = PathSample(*(torch.empty_like(part) for part in sample.parts))
        self.weights = torch.empty_like(sample.t, dtype=sample.x_t.dtype)
        self.work = Recorded[list[Tensor]](sample.x_t.device)

    def fits(self, sample: PathSample) -> bool:
        """Whether a sample is of the size that the pass was made for."""
        return sample.x_t.shape == self.sample.x_t.shape

    @torch.no_grad()
    def __call__(
        self, parameters: Sequence[Tensor], sample: PathSample, weights: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The weighted error, and its gradient in each parameter."""
        torch._foreach_copy_(self.parameters, list(parameters))
        torch._foreach_copy_([*self.sample.parts, self.weights], [*sample.parts, weights])
        value, *slopes = self.work(self._slopes)
        return value.clone(), copied(slopes, self.dtypes)

    @torch.enable_grad()
    def _slopes(self) -> list[Tensor]:
        own = dict(zip(self.names, self.parameters, strict=True))
        velocity = functional_call(self.field, own, self.sample.inputs, tie_weights=False)
        value = weighted_error(velocity, self.sample.u_t, self.weights)
        return [value.detach(), *torch.autograd.grad(value, self.parameters)]


_SHARED: dict[Hashable, RecordedPass] = {}  # one at most


def shared_pass(key: Hashable, make: Callable[[], RecordedPass]) -> RecordedPass:
    """The process's recorded pass for what `key` names, which takes the place of any other."""
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = make()
    return _SHARED[key]


def forget_pass() -> None:
    """Gives back the memory of a recorded pass; the next one records anew."""
    _SHARED.clear()


def weighted_error(velocity: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Σ_n w_n ‖v_n − u_n‖²."""
    return ((velocity - wanted).square().flatten(1).sum(1) * weights).sum()
