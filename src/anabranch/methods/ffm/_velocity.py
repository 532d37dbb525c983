"""The velocity of a trained flow: what is followed when it is sampled from."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anabranch.errors import UsageError
from anabranch.flow import Velocity, attempt, is_compiled
from anabranch.flow.conditioning import NULL, conditioned, guided
from anabranch.methods.ffm._half import computes_in_half
from anabranch.methods.ffm._settings import FlowMatching
from anabranch.methods.ffm._speed import AUTO_ROWS, compile_flow, tuned

_ROWS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # of a compiled pass of the network


class FlowVelocity:
    """v(x, t) of a network with these parameters, which are copied, at points x (n, d) and a time t.

    A flow that is told classes can also be asked for v(x, t, y) with codes y (n, 1), NULL where no class is given, as
    without y: it is a field that `conditioned` and `guided` take.

    It is computed in half precision where the settings ask for it, and compiled where that is asked for or pays. Then
    all passes have one number of `rows`: points are taken in parts of so many, the last of which is filled up, so that
    nothing is compiled twice. Rows do not mix: what is filled in changes no other. Who knows what is to come says so
    (`prepare`); otherwise parts are as large as what came first, and twice as much is a reason to take larger ones.
    With `exact`, numbers of 32 bits are not rounded where they are multiplied, which GPUs do in convolutions.
    """

    def __init__(
        self, module: nn.Module, settings: FlowMatching, parameters: dict[str, Tensor], exact: bool = False
    ) -> None:
        self.module, self.settings, self.exact = module, settings, exact
        self.like = next(iter(parameters.values())).new_zeros(())
        self.device = self.like.device
        dtype = torch.bfloat16 if computes_in_half(settings, self.device) else self.like.dtype
        self.parameters = {name: tensor.to(dtype, copy=True) for name, tensor in parameters.items()}
        self._prepared = False
        self._evaluated = 0

    @property
    def compiled(self) -> bool:
        """Whether passes are compiled by now."""
        return is_compiled(self.module)

    @property
    def rows(self) -> int:
        """Those of a compiled pass, whoever had the network compiled; 0 before the first."""
        return _ROWS.get(self.module, 0)

    def prepare(self, x: Tensor, evaluations: int) -> None:
        """Gets ready for points such as x (n, d), n at a time, and so many `evaluations` of single points in all.

        What takes its time once is done now, and in no clock: compiling, if it is to pay, and choosing kernels.
        """
        self._compile(at_once=evaluations >= AUTO_ROWS)
        _ROWS[self.module], self._prepared = len(x), True
        self(x, x.new_zeros(()))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # its work is begun, not done, when a call returns

    def __call__(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        self._compile(at_once=self._evaluated >= AUTO_ROWS)  # a few images do not pay for it
        self._evaluated += len(x)
        inputs = [x.to(self.like), t.to(self.device)]
        if self.settings.flow.classes:
            told = torch.full((len(x), 1), NULL, device=self.device) if y is None else y.to(self.device)
            inputs.append(told.contiguous())  # lying otherwise, it would be compiled for again
        elif y is not None:
            raise UsageError("This flow is told no classes; leave them out.")
        slopes = x.requires_grad and torch.is_grad_enabled()  # code with and without is compiled apart
        with tuned(self.settings, self.device, self.exact), torch.set_grad_enabled(slopes):
            value = attempt(self.module, lambda: self._in_parts(*inputs))
        return value.to(x)

    def of_class(self, label: int | Tensor | None, weight: float = 1.0, until: float = 1.0) -> Velocity:
        """v(·, ·, y) for points of a class, or of one class each (n,); sharpened by a `weight` above one until the time
        `until`, at the price of two evaluations (`guided`). None: no class is given."""
        sharper = guided(self, weight, until)  # which also says what cannot be
        if label is None:
            if weight != 1:
                raise UsageError(
                    f"A weight of {weight} sharpens a class, and none is given; give one, or leave it out."
                )
            return self
        classes, codes = self.settings.flow.classes, torch.as_tensor(label)
        if not classes:
            raise UsageError("This flow is told no classes, and samples all; set flow.classes to train one that is.")
        if codes.is_floating_point() or bool(((codes < 0) | (codes >= classes)).any()):
            raise UsageError(f"A class is a number from 0 to {classes - 1} here; {label!r} was given.")
        return conditioned(self if weight == 1 else sharper, codes.long().reshape(-1, 1).to(self.device))

    def _compile(self, at_once: bool) -> None:
        if not self.compiled and (at_once or self.settings.flow.compile is True):
            compile_flow(self.module, self.settings, self.device)

    def _in_parts(self, x: Tensor, *told: Tensor) -> Tensor:
        if not self.compiled:
            return self._pass(x, *told)
        if len(x) >= 2 * self.rows and not self._prepared:
            _ROWS[self.module] = len(x)
        parts = [slice(start, start + self.rows) for start in range(0, len(x), max(1, self.rows))]
        found = [self._pass(*(self._filled(one[part]) if one.ndim else one for one in (x, *told))) for part in parts]
        return torch.cat(found)[: len(x)] if found else x

    def _filled(self, x: Tensor) -> Tensor:
        """The same with zeros below, up to the rows of a pass."""
        missing = self.rows - len(x)
        return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x

    def _pass(self, *inputs: Tensor) -> Tensor:
        value: Tensor = functional_call(self.module, self.parameters, inputs, tie_weights=False)
        return value
