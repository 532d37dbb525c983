"""Figures of the study `composition_images`: are samples realistic, and do they show what was asked for?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import Attributed
from anabranch.errors import DataError
from anabranch.metrics import (
    AttributeClassifier,
    FeatureStatistics,
    Inception,
    conformity,
    frechet_distance,
    precision_recall,
    to_bytes,
)
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies._composition_images_data import SIDES, Scene, images
from anabranch.recipes.studies._shared import once

# The judge's images are coloured anew, as with no seed of a run: it must not have learned silos' very images.
JUDGE_SEED = seeds.derive(0, "judge")
Figures = dict[str, float]


@dataclass(frozen=True)
class Eyes:
    """What looks at images: the judge of attributes, Inception where its weights are, and real images to compare with.

    `seen` holds the features of real test images by the name of a network, then of known and novel combinations.
    """

    judge: AttributeClassifier
    inception: Inception | None
    seen: dict[str, dict[str, Tensor]]
    shape: tuple[int, int, int]
    device: torch.device
    options: Mapping[str, Any]
    _statistics: dict[tuple[str, str, int], FeatureStatistics] = field(default_factory=dict)

    def features(self, x: Tensor) -> dict[str, Tensor]:
        """Features of images (n, d) in [−1, 1], by the name of a network."""
        found = {"judge": self.judge.features(x)}
        if self.inception is not None:
            pixels = to_bytes(x, self.shape)
            found["inception"] = self.inception.features(pixels, self.options["inception"]["batch"])
        return found

    def compare(self, made: Mapping[str, Tensor], side: str, name: str) -> Figures:
        """Fréchet distance, precision and recall against real images of one side; of `name` in the table.

        FID proper is on Inception's features; on those of the judge all three have `features` in their names.
        """
        found: Figures = {}
        for network, features in made.items():
            word = "" if network == "inception" else "_features"
            real = self.seen[network][side].to(self.device)
            generated = features.to(self.device)
            real = real[: len(generated)]  # equal numbers on both sides: both measures depend on them
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that few images bias the distance stands in the recipe
                found[f"fid{word}_{name}"] = frechet_distance(self._real(network, side, real), generated)
            both = precision_recall(real, generated)
            found |= {f"precision{word}_{name}": both.precision, f"recall{word}_{name}": both.recall}
        return found

    def _real(self, network: str, side: str, features: Tensor) -> FeatureStatistics:
        """Statistics of as many real images; they keep the root that every distance to them needs."""
        key = network, side, len(features)
        if key not in self._statistics:
            self._statistics[key] = FeatureStatistics.of(features)
        return self._statistics[key]

    def obeyed(self, x: Tensor, wanted: Tensor, names: tuple[str, ...], name: str) -> Figures:
        """How often samples show what was asked for: all of it, its complement, and each attribute."""
        found = conformity(self.judge, x, wanted)
        each = {f"conformity_{name}_{attribute}": value for attribute, value in zip(names, found.each, strict=True)}
        return {f"conformity_{name}": found.all_right, f"error_{name}": 1 - found.all_right, **each}


def eyes(cell: StudyCell, scene: Scene, device: torch.device) -> Eyes:
    """The judge, trained once on real images of all combinations; and features of the real test images."""
    options, facts = cell.options, _facts(cell)
    judge = AttributeClassifier.of_tensors(
        once(cell, "judge", {**facts, "judge": options["judge"], "seed": JUDGE_SEED}, lambda: _judge(options, device)),
        device,
    )
    seen = {"judge": {side: judge.features(scene.real[side].x) for side in SIDES}}
    inception = _inception(options, device)
    if inception is not None:
        batch, of = options["inception"]["batch"], {**facts, "tf32": options["inception"]["tf32"]}

        def look() -> dict[str, Tensor]:
            pixels = {side: to_bytes(scene.real[side].x, scene.shape) for side in SIDES}
            return {side: inception.features(pixels[side], batch) for side in SIDES}

        seen["inception"] = once(cell, "inception", of, look)
    return Eyes(judge, inception, seen, scene.shape, device, options)


def judge_accuracy(judge: AttributeClassifier, options: Mapping[str, Any]) -> float:
    """The share of real test images of all combinations that the judge gets right: more cannot be measured."""
    test = images(options, "test", None, options["samples"], JUDGE_SEED)
    return judge.accuracy(test.x, test.codes).all_right


def _judge(options: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    of = options["judge"]
    real: Attributed = images(options, "train", None, of["images"], JUDGE_SEED)
    found = AttributeClassifier.fit(
        real.x.to(device),
        real.codes.to(device),
        real.shape,
        real.space.sizes,
        epochs=of["epochs"],
        batch=of["batch"],
        device=device,
    )
    return found.tensors()


def _inception(options: Mapping[str, Any], device: torch.device) -> Inception | None:
    """None where the recipe does without, and, with a warning, where the weights are not on this machine."""
    if not options["inception"]["use"]:
        return None
    try:
        return Inception.load(device=device, tf32=options["inception"]["tf32"])
    except DataError as error:
        warnings.warn(f"There will be no FID, only distances on the judge's features. {error}", stacklevel=2)
        return None


def _facts(cell: StudyCell) -> dict[str, Any]:
    return {name: cell.options.get(name) for name in ("source", "source_options", "observed", "samples")}
