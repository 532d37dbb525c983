"""Are samples copies of training images? How near they are, measured by how near fresh images happen to be."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.metrics._points import same_space
from anabranch.transport import nearest

_COPIES = 1e-3  # of the median distance: below, a test image is a training image but for rounding


@dataclass(frozen=True)
class Memorisation:
    """The `share` of samples that are no farther than `threshold` from some training image.

    `distance` (n,) is each sample's to the training image with the index `nearest` (n,).
    """

    share: float
    threshold: float
    distance: Tensor
    nearest: Tensor

    def pairs(self, count: int) -> Tensor:
        """Indices (count, 2) of samples and their training images, the nearest pair first: look at them."""
        first = self.distance.argsort(stable=True)[:count]
        return torch.stack([first, self.nearest[first]], 1)


def memorisation_threshold(train: Tensor, test: Tensor, quantile: float = 0.01, chunk: int = 1024) -> float:
    """The distance to the nearest training image that this share of *test* images stays below; of features (n, d).

    So of images that nobody can have copied from the training set, this share counts as copies. It depends on the
    number of training images: take all that a model was trained on.
    """
    if not 0 < quantile < 1:
        raise UsageError(f"The quantile {quantile} was given; it must lie between 0 and 1, as 0.01 does.")
    distance, _ = _nearest(*same_space(test, train, ("test", "train")), chunk)
    found = float(distance.quantile(quantile))
    if found <= _COPIES * float(distance.median()):
        warnings.warn(
            f"{quantile:.1%} of the test images are copies of training images: they are within {found:.3g}, half of all"
            f" beyond {float(distance.median()):.3g}. So exact copies alone will count. Take them out of the test"
            " images, or a larger quantile.",
            stacklevel=2,
        )
    return found


def memorisation(generated: Tensor, train: Tensor, threshold: float, chunk: int = 1024) -> Memorisation:
    """Which samples are nearer to a training image than test images are, by features (m, d) and (n, d).

        threshold = memorisation_threshold(train, test)            # once
        memorisation(generated, train, threshold).share            # 0.01 for fresh images, 1 for copies

    Neighbours are exact, by Euclidean distance, found `chunk` samples at a time on the device of `generated`. A share
    near the quantile is no proof of originality: a mirrored copy or a blend of two images may lie farther away.

    >>> train = torch.tensor([[0.0], [10.0]])
    >>> memorisation(torch.tensor([[0.1], [4.0], [10.0]]), train, 0.5).nearest.tolist()
    [0, 0, 1]
    """
    if not threshold >= 0:
        raise UsageError(f"The threshold is {threshold}; a distance is not negative. Use memorisation_threshold.")
    distance, index = _nearest(*same_space(generated, train, ("generated", "train")), chunk)
    share = float((distance <= threshold).double().mean())
    return Memorisation(share, threshold, distance.cpu(), index.cpu())


def _nearest(points: Tensor, others: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """From each point to the nearest other: distance (n,), which is zero exactly for a copy, and index (n,)."""
    found = nearest(points, others.to(points.device), chunk=chunk)
    return (2 * found.value).sqrt(), found.index
