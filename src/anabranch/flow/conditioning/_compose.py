"""Compositional velocity: the fields of single attributes, added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.flow._solvers import Velocity
from anabranch.flow.conditioning._evaluate import Additive, Field, all_masks
from anabranch.flow.conditioning._masks import NULL, masked, single_masks


def composed(field: Field, weights: Sequence[float] | float | None = None, until: float = 1.0) -> Composition:
    """The field v̂(x, t, y) = v(∅) + Σ_i w_i (v(y_i) − v(∅)) over the given attributes (DCFM, eq. (5)).

    Its k + 1 evaluations are one batched pass. Where the attributes are independent given x_t and w = 1, it is the
    joint velocity v(y), also of combinations that were never seen; w_i > 1 sharpens attribute i as classifier-free
    guidance does (eq. (23)). `weights` is one number for all, or one an attribute; ones when None, and after the time
    `until`. Without any given attribute it is v(∅).

    >>> field = composed(lambda x, t, y: x + y.clamp_min(0).sum(dim=1, keepdim=True), weights=[1.0, 2.0])
    >>> field(torch.zeros(1, 1), torch.tensor(0.5), torch.tensor([[3, 4]]))       # 0 + 1 · 3 + 2 · 4
    tensor([[11.]])
    """
    return Composition(field, strengths(weights), _time(until))


def strengths(weights: Sequence[float] | float | None) -> tuple[float, ...]:
    """Weights as numbers: of one for all attributes that number alone; one, where none are given."""
    given = [1.0] if weights is None else [weights] if _alone(weights) else weights
    return tuple(map(_number, given))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Composition:
    """What `composed` returns: a field, and for a solver its velocity `at(y)`."""

    field: Field
    weights: tuple[float, ...]
    until: float = 1.0

    def __post_init__(self) -> None:
        if not self.weights or not all(map(math.isfinite, self.weights)):
            raise UsageError(
                f"The weights of a composition cannot be {list(self.weights)}. Give a finite number for each attribute."
            )
        _time(self.until)

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return self.at(y)(x, t)

    def at(self, y: Tensor) -> Velocity:
        """v̂(·, ·, y) for y (n, k), one row a point, or (k,) the same for all; what depends on y is prepared once."""
        y = y if y.dim() == 2 else y.unsqueeze(0)
        given = (y != NULL).double().T.unsqueeze(-1)
        strength = self._strength(y.shape[1]).to(given) * given

        @lru_cache(maxsize=1)
        def early(device: torch.device, dtype: torch.dtype) -> Tensor:
            return _with_rest(strength).to(device, dtype)

        @lru_cache(maxsize=1)
        def late(device: torch.device, dtype: torch.dtype) -> Tensor:
            return _with_rest(given).to(device, dtype)

        def shares(x: Tensor, t: Tensor) -> Tensor:  # (k + 1, n, 1): of every v(y_i), and of v(∅)
            first = early(x.device, x.dtype)
            if self.until == 1:
                return first
            return torch.where((t > self.until).to(x.device).unsqueeze(-1), late(x.device, x.dtype), first)

        if isinstance(self.field, Additive):
            return _sum_of_terms(self.field, y, shares)
        codes = masked(y, single_masks(y.shape[1], y.device).unsqueeze(1))
        count = codes.shape[0]

        @lru_cache(maxsize=1)
        def repeated(rows: int, device: torch.device) -> Tensor:  # the solver asks for the same ones again and again
            return codes.to(device).expand(-1, rows, -1).flatten(0, 1)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            times = t if t.dim() == 0 else t.repeat(count)
            rows = x.expand(count, *x.shape).flatten(0, 1)  # quicker than repeat
            terms = self.field(rows, times, repeated(x.shape[0], x.device)).reshape(count, *x.shape)
            return (shares(x, t) * terms).sum(dim=0)

        return velocity

    def _strength(self, k: int) -> Tensor:
        """The weights of k attributes (k, 1, 1). They count where an attribute is given, and nothing where it is not.

        Not left to v(y_i) = v(∅) when y_i is null: rounding may differ between the rows of one pass.
        """
        if len(self.weights) not in (1, k):
            raise UsageError(
                f"There are {len(self.weights)} weights for {k} attributes. Give one for each, or one for all of them."
            )
        return torch.tensor(self.weights, dtype=torch.float64).expand(k).reshape(k, 1, 1)


def _with_rest(weights: Tensor) -> Tensor:
    """The weights (k, n, 1) of single attributes, and behind them what is left for v(∅)."""
    return torch.cat([weights, 1 - weights.sum(dim=0, keepdim=True)])


def _sum_of_terms(field: Additive, y: Tensor, shares: Velocity) -> Velocity:
    def velocity(x: Tensor, t: Tensor) -> Tensor:
        parts = field.parts(x, t, y.to(x.device).expand(x.shape[0], -1))
        return parts[0] + (shares(x, t)[:-1] * parts[1:]).sum(dim=0)

    return velocity


def guided(field: Field, weight: float = 1.0, until: float = 1.0) -> Field:
    """The field v(∅) + w (v(y) − v(∅)): the joint label, sharpened (classifier-free guidance, Ho and Salimans 2022).

    Where the attributes are independent given x_t it is the composition with w for all of them. It asks the field for
    whole labels, also those that were never seen, and trusts the network with what they look like. One pass of 2n rows.

    After the time `until` the field is left as it is: what a sample shows is settled early, and sharpening it further
    only makes it bolder than data (Kynkäänniemi et al. 2024). A single time after that is a pass of n rows.

    >>> field = guided(lambda x, t, y: x + (y.clamp_min(0) + 1).prod(dim=1, keepdim=True), weight=2.0)
    >>> field(torch.zeros(1, 1), torch.tensor(0.5), torch.tensor([[3, 4]]))       # 1 + 2 · (20 − 1)
    tensor([[39.]])
    """
    number, until = _number(weight), _time(until)
    if not math.isfinite(number):
        raise UsageError(
            f"The weight of guidance cannot be {weight}. Give a finite number; 1 leaves the field as it is."
        )

    def velocity(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        if t.dim() == 0 and bool(t > until):
            return field(x, t, y)
        both = torch.ones(2, y.shape[1], dtype=torch.bool, device=y.device)
        both[1] = False
        values = all_masks(field, x, t, y, both)
        strength = torch.where(t > until, 1.0, number).to(x).unsqueeze(-1)
        return values[1] + strength * (values[0] - values[1])

    return velocity


def _alone(value: object) -> bool:
    """Whether it is one thing rather than several; an array without dimensions is one."""
    return not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0


def _number(value: object) -> float:
    """A number; NaN of what is none, such as a text that looks like one."""
    try:
        return float(value) if _alone(value) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _time(until: float) -> float:
    """When weights end, which must lie in [0, 1]."""
    if not 0 <= (found := _number(until)) <= 1:
        raise UsageError(f"Weights cannot last until t = {until}. Give a time in [0, 1]; 1 is all along.")
    return found


def conditioned(field: Field, y: Tensor) -> Velocity:
    """The velocity v(·, ·, y) that a solver takes: y (n, k), one row a point, or (k,) the same for all.

    >>> from anabranch.flow import integrate
    >>> shift = conditioned(lambda x, t, y: y.to(x.dtype), torch.tensor([2, 5]))
    >>> integrate(shift, torch.zeros(1, 2), nfe=4).x1
    tensor([[2., 5.]])
    """
    if isinstance(field, Composition):
        return field.at(y)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return field(x, t, y.to(x.device).expand(x.shape[0], -1))

    return velocity
