"""Attributes that add up only once an image can be made out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.flow.conditioning._evaluate import Field
from anabranch.flow.conditioning._masks import NULL


@dataclass(frozen=True)
class AdditiveSince:
    """The field v(x, t, y) before the time `since`; from then on v(∅) + Σ_{i given} (v(y_i) − v(∅)).

    The sum is the composition of DCFM, eq. (5), with w = 1: from `since` on attributes are independent by
    construction. In data they are independent given x_t only where x_t shows them. Under much noise they are not: the
    mean of red threes is no sum of what is red and what is a three, so that a field which adds all along learns to
    hesitate. One pass of (k + 1)·n rows; of n rows at a single time before `since`.

    >>> product = AdditiveSince(lambda x, t, y: x + (y.clamp_min(0) + 1).prod(dim=1, keepdim=True), since=0.5)
    >>> product(torch.zeros(2, 1), torch.tensor([0.4, 0.6]), torch.tensor([[3, 4], [3, 4]]))[:, 0]    # 4 · 5, 4 + 5 − 1
    tensor([20.,  8.])
    """

    field: Field
    since: float

    def __post_init__(self) -> None:
        if not 0 <= self.since <= 1:
            raise UsageError(f"A field cannot be additive since t = {self.since}. Give a time in [0, 1].")

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        if t.dim() == 0 and bool(t < self.since):
            return self.field(x, t, y)
        count, n = y.shape[1] + 1, x.shape[0]
        late = (t >= self.since).to(x.device).expand(n).unsqueeze(1)
        alone = torch.eye(count - 1, dtype=torch.bool, device=y.device).unsqueeze(1)
        codes = torch.cat([torch.where(late, NULL, y), torch.where(alone, y, NULL).flatten(0, 1)])
        times = t if t.dim() == 0 else t.repeat(count)
        common, *single = self.field(x.repeat(count, 1), times, codes).reshape(count, *x.shape)
        effects = torch.stack(
            [torch.where(late & (y[:, i : i + 1] != NULL), v - common, 0) for i, v in enumerate(single)]
        )
        velocity: Tensor = common + effects.sum(dim=0)
        return velocity
