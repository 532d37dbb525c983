"""What looks at samples in the study `flow_images`: Inception beside both splits, or the pixels themselves."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Pixels, load_images, weights
from anabranch.errors import UsageError
from anabranch.metrics import (
    ClassLayer,
    FeatureStatistics,
    Inception,
    Reference,
    fid_report,
    frechet_bias,
    frechet_distance,
    memorisation,
    memorisation_threshold,
    reference,
)
from anabranch.metrics._fid_report import train_against_test
from anabranch.metrics._frechet import ENOUGH
from anabranch.recipes.studies.flow_images._memory import spared_option
from anabranch.runs import Config, Row, images_of

SPLITS = ("train", "test")
SCORE = "inception_score"
# What says who holds an image and how it is drawn, and so nothing about which images there are.
_HOLDERS = ("silos", "partition", "attribute", "groups", "alpha", "shards", "pooled", "held_out", "flip", "crop")


class Eyes:
    """Features of images (n, c, h, w) of bytes, and how far they are from those of real ones.

    Rows say how many `images` they are of and how many `real` ones these were compared with.
    """

    def __init__(self, options: dict[str, Any], config: Config, device: torch.device) -> None:
        chosen = options["inception"]
        self.batch, self.device = chosen["batch"], device
        self.config, self.real = config, options["real"]
        self.mirrors = _mirrors(config)
        self.inception = Inception.load(device=device, tf32=chosen.get("tf32", False)) if chosen["use"] else None
        self.classes = ClassLayer.load(chosen["classes"]) if "classes" in chosen else None
        self.references = {split: self._reference(split, self.real).to(device) for split in SPLITS}
        self._told: set[int] = set()

    def features(self, images: Tensor) -> Tensor:
        """What Inception sees, or else the pixels as numbers: (n, d)."""
        if self.inception is None:
            return _flat(images)
        with spared_option("inception.batch", self.batch, "Inception looked at images"):
            return self.inception.features(images, self.batch)

    def compare(self, features: Tensor) -> list[Row]:
        """Distances to both splits, as rows without a cell."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # once is enough: see `of_real_images`
            if self.inception is not None:
                return [*fid_report(features, self.references, sanity=False), *self._score(features)]
            made = FeatureStatistics.of(features.to(self.device))
            real = {split: found.statistics for split, found in self.references.items()}
            return [
                {"metric": f"pixels_{split}", "value": frechet_distance(found, made), **_sizes(features, found.count)}
                for split, found in real.items()
            ]

    def _score(self, features: Tensor) -> list[Row]:
        """The Inception Score, where the layer of classes was given; it sees no real image."""
        if self.classes is None:
            return []
        found = self.classes.score(features, seeds.generator(0, "inception score"))
        values = {SCORE: found.value, f"{SCORE}_deviation": found.deviation}
        return [{"metric": metric, "value": value, "images": len(features)} for metric, value in values.items()]

    def of_real_images(self, count: int) -> list[Row]:
        """What `count` samples are to be compared with: FID of training against test images, and the bias, which is
        FID of a perfect flow's samples against training images. Without Inception nothing.
        """
        return [] if self.inception is None else [*self._sanity, self._bias(count)]

    @cached_property
    def _sanity(self) -> list[Row]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return train_against_test(self.references)

    def _bias(self, count: int) -> Row:
        train = self.references["train"].statistics
        value = frechet_bias(train, count)
        if count not in self._told:
            self._told.add(count)
            self._tell_of_few(count, value)
        return {"metric": "fid_bias", "value": value, "images": count, "real": train.count}

    def _tell_of_few(self, count: int, value: float) -> None:
        """Warns where samples or real images are few; `value` is the bias of FID against the training images."""
        if count < ENOUGH:
            warnings.warn(
                f"FID of {count} samples is too large, by about {value:.3g} even for a perfect flow: compare it with"
                f" others of as many samples only, or raise sampling.count to {ENOUGH} or more.",
                stacklevel=3,
            )
        known = self.references["train"].statistics.count
        for split, found in self.references.items():
            if (real := found.statistics.count) < ENOUGH:
                bias = value * (1 / count + 1 / real) / (1 / count + 1 / known)  # the same images, in another number
                warnings.warn(
                    f"FID against {real} images ({split}) is too large, by about {bias:.3g} even for a perfect flow:"
                    " compare it with others against as many of these images only.",
                    stacklevel=3,
                )

    def memorised(self, features: Tensor) -> Row:
        """The share of samples that are nearer to a training image than 99 % of the test images are.

        All training images of the run are looked at, however many `real` ones distances are taken to, and where the run
        mirrors images, their mirror images.
        """
        train, threshold = self._training
        share = memorisation(features.to(self.device), train, threshold).share
        name = "memorised_pixels" if self.inception is None else "memorised"
        return {"metric": name, "value": share, **_sizes(features, len(train) // (1 + self.mirrors))}

    @cached_property
    def _training(self) -> tuple[Tensor, float]:
        """Features of all training images, and the distance below which a sample counts as memorised."""
        train = self._reference("train", 0).to(self.device).features if self.real else self.references["train"].features
        test = self.references["test"].features
        assert train is not None and test is not None  # they were kept
        if self.mirrors:
            train = torch.cat([train, self.features(_real(self.config, "train", 0).flip(-1)).to(train)])
        return train, memorisation_threshold(train, test)

    def _reference(self, split: str, count: int) -> Reference:
        pixels = _real(self.config, split, count)
        if self.inception is None:
            return Reference.of(_flat(pixels))
        name = self.config.data.target
        with spared_option("inception.batch", self.batch, "Inception looked at images"):
            return reference(name, split, self.inception, count=len(pixels), images=pixels, batch=self.batch)


def check_eyes(options: dict[str, Any]) -> None:
    """Refuses before training what could not be looked at after it: with a layer of classes that cannot be read, or has
    no features to look at, or by Inception without its weights."""
    chosen = options["inception"]
    if "classes" in chosen and not chosen["use"]:
        raise UsageError(
            "The Inception Score needs Inception's features, and here pixels are compared instead; leave the layer of"
            " classes out, or take a scale with inception.use = true."
        )
    if "classes" in chosen:
        ClassLayer.load(chosen["classes"])
    if chosen["use"]:
        weights("inception")


_OPEN: dict[str, Eyes] = {}


def eyes_of(options: dict[str, Any], config: Config, device: torch.device) -> Eyes:
    """Those that the last cell of this process looked with, if they see the same images in the same way: to open them
    takes as long as to look at thousands of samples."""
    data = {name: value for name, value in asdict(config.data).items() if name not in _HOLDERS}
    seen = (data, _mirrors(config), config.images.shape, options["real"], sorted(options["inception"].items()))
    key = repr((*seen, str(device)))
    if key not in _OPEN:
        _OPEN.clear()  # before the others take memory, too
        _OPEN[key] = Eyes(options, config, device)
    return _OPEN[key]


def _mirrors(config: Config) -> bool:
    """Whether the run is shown mirror images, at random or as points of their own."""
    return config.data.flip != "none"


def _sizes(features: Tensor, real: int) -> dict[str, int]:
    return {"images": len(features), "real": real}


def _real(config: Config, split: str, count: int) -> Tensor:
    """Images of a split, as the run shows them: (n, c, h, w) of bytes."""
    if split == "train":
        found: Pixels = images_of(config.data)
        rows = found.bytes.reshape(-1, *found.shape)
    else:
        whole = load_images(config.data.target, split)
        rows = images_of(config.data, whole).bytes.reshape(-1, *config.images.shape)
    return rows[:count] if count else rows


def _flat(images: Tensor) -> Tensor:
    return images.flatten(1).double() / 127.5 - 1
