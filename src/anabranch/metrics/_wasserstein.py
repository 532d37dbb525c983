"""The exact 2-Wasserstein distance between two sets of points, and what a perfect model would score."""

from __future__ import annotations

import math

from torch import Tensor

from anabranch.metrics._points import same_space
from anabranch.transport import exact_cost


def wasserstein2(x: Tensor, y: Tensor) -> float:
    """W2(x, y) = √ min_π Σ_ij π_ij ‖x_i − y_j‖² over plans π between equally weighted points.

    x (n, d) and y (m, d), n and m may differ; images (n, ...) are flattened. A metric on point sets:
    symmetric, zero only for equal sets, ‖s‖ for a set and its shift by s.

    >>> import torch
    >>> wasserstein2(torch.zeros(3, 2), torch.tensor([[3.0, 4.0]]))
    5.0
    """
    return math.sqrt(max(0.0, 2 * exact_cost(*same_space(x, y))))


def noise_floor(first: Tensor, second: Tensor) -> float:
    """What a perfect model would score: W2 between independent reference sets (n, d), (m, d) of one target.

    Finite sets of one distribution are not at distance zero. A model's W2 to one of the sets means
    something only as far as it exceeds this; give sets as large as those of the evaluation, drawn in the
    same way.
    """
    return wasserstein2(first, second)
