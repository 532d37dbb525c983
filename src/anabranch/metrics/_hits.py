"""Do samples land where they were asked to?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from anabranch.errors import DataError, UsageError

Value = TypeVar("Value")


def hit_rate(samples: Tensor, centre: Tensor, radius: float) -> float:
    """The share of samples (n, d) within `radius` of the centre (d,), or each of its own centre (n, d).

    With radius 3σ a perfect sampler of N(centre, σ²I) scores the χ² distribution's value at 9: .9889 in two dimensions.
    Samples that are not finite are misses, since they are what a diverged model gives.

    >>> import torch
    >>> hit_rate(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(2), 1.0)
    0.5
    """
    if samples.ndim != 2 or centre.shape not in (samples.shape, samples.shape[1:]):
        raise UsageError(
            f"Samples of shape {tuple(samples.shape)} and a centre of {tuple(centre.shape)} were given; give (n, d) and"
            " (d,) or (n, d)."
        )
    if not radius > 0:
        raise UsageError(f"The radius {radius} was given; it must be positive.")
    if len(samples) == 0:
        raise DataError("There are no samples, so no share of them hits. Give at least one.")
    distance = (samples.double() - centre.to(samples.device).double()).norm(dim=1)
    return float((distance <= radius).double().mean())


def by_combination(measure: Callable[[Tensor, int], Value], samples: Tensor, label: Tensor) -> dict[int, Value]:
    """A measure of the samples of each label, by label: measure(samples with that label, label).

    >>> import torch
    >>> samples, label = torch.tensor([[1.0], [5.0], [3.0]]), torch.tensor([4, 0, 4])
    >>> by_combination(lambda part, label: float(part.mean()), samples, label)
    {0: 5.0, 4: 2.0}
    """
    if label.shape != samples.shape[:1]:
        raise UsageError(f"Labels of shape {tuple(label.shape)} were given for {len(samples)} samples; each needs one.")
    return {name: measure(samples[label == name], name) for name in sorted(set(label.tolist()))}
