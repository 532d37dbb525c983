"""Four Gaussians in the corners of a square: the plane's smallest problem of composition."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._observed import observed_mask
from anabranch.data.attributes._space import AttributeSpace
from anabranch.errors import UsageError

CORNERS = AttributeSpace.of({"horizontal": ["left", "right"], "vertical": ["top", "bottom"]})


def corner_modes(distance: float = 1.0) -> Tensor:
    """The modes (4, 2) at (±distance, ±distance), by label.

    >>> corner_modes()[CORNERS.encode(CORNERS.parse("horizontal=right, vertical=top"))]
    tensor([1., 1.])
    """
    return distance * torch.tensor([[-1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])


def corner_points(label: Tensor, generator: torch.Generator, distance: float = 1.0, sigma: float = 0.2) -> Attributed:
    """One point x ~ N(mode, σ² I) for each label: samples of any combination, also of one that nobody has."""
    if not (0 < sigma < float("inf") and 0 < distance < float("inf")):
        raise UsageError(f"distance = {distance} and sigma = {sigma} were given; both must be positive.")
    noise = torch.randn(len(label), 2, generator=generator)
    return Attributed(corner_modes(distance)[label] + sigma * noise, label, CORNERS)


def corners(
    split: str,
    count: int | None,
    seed: int,
    observed: Tensor | str | None = None,
    distance: float = 1.0,
    sigma: float = 0.2,
) -> Attributed:
    """A mixture with equal weights of the observed modes (DCFM, section 4); 2000 points if no count is given."""
    generator = seeds.generator(seed, "corners", split)
    known = observed_mask(CORNERS, observed).nonzero()[:, 0]
    label = known[torch.randint(len(known), (2000 if count is None else count,), generator=generator)]
    return corner_points(label, generator, distance, sigma)
