"""How samples are drawn in the study `composition_images`: known and novel combinations each in their own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.methods.experts import Mixture
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies._composition_images_data import SIDES, Scene


@dataclass(frozen=True)
class Way:
    """A way of `Mixture.field`: its weights, one for guidance and one an attribute for a composition, may end early."""

    how: str
    weights: Sequence[float] | None = None
    until: float = 1.0

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Way:
        """What a section of the recipe says; the joint velocity has no weights, whatever it says."""
        weights = section.get("weights") if section["how"] != "joint" else None
        return cls(section["how"], weights, float(section.get("until", 1.0)))

    def numbers(self, side: str, attributes: Sequence[str]) -> dict[str, float]:
        """For the table of settings: the weight of each attribute, and whether they are added up by eq. (5)."""
        weights = list(self.weights or [1.0])
        each = weights if len(weights) == len(attributes) else weights[:1] * len(attributes)
        found = {f"weight_{side}_{name}": float(w) for name, w in zip(attributes, each, strict=True)}
        until = {f"until_{side}": self.until} if self.weights else {}
        return {**found, **until, f"composed_{side}": float(self.how in ("composed", "within"))}


def sampled(
    mixture: Mixture, y: Tensor, cell: StudyCell, found: Scene, device: torch.device, name: str, way: Way
) -> Tensor:
    """A sample for each label y (n, k), on the CPU, in [−1, 1]. All methods of a seed begin from the same noise."""
    options = cell.options["sampling"]
    parts = []
    for number, codes in enumerate(torch.split(y, options["batch"])):
        generator = seeds.generator(cell.seed, "noise", name, number)
        x0 = torch.randn(len(codes), found.real["known"].x.shape[1], generator=generator).to(device)
        steps = (options["nfe"], options["solver"])
        flow = mixture.sample(codes.to(device), generator, *steps, way.how, way.weights, x0=x0, until=way.until)
        parts.append(flow.x1)
    return torch.cat(parts).cpu().clamp(-1, 1)


def every_combination(mixture: Mixture, cell: StudyCell, found: Scene, device: torch.device) -> Tensor:
    """One sample of each, known and novel ones in their own ways."""
    y = found.space.combinations()
    x = torch.empty(len(y), found.real["known"].x.shape[1])
    for side, mask in zip(SIDES, (found.observed, ~found.observed), strict=True):
        x[mask] = sampled(mixture, y[mask], cell, found, device, f"grid-{side}", Way.of(cell.options[side]))
    return x
