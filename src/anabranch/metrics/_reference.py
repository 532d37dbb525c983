"""The real images that samples are compared with, as the FID network sees them: looked at once, then kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from anabranch.data import load_images
from anabranch.errors import UsageError
from anabranch.metrics._inception import Inception, Progress
from anabranch.metrics._reference_files import keep_features, keep_statistics, kept_features, kept_statistics
from anabranch.metrics._statistics import FeatureStatistics
from anabranch.seeds import generator

RESIZE = "bilinear as in TensorFlow 1, to 299, not smoothed"
_STRETCH = 2048  # images whose features are in memory at a time, where only statistics are kept
_LOOKED_AT = 1024  # images that tell one set from another


@dataclass(frozen=True)
class Reference:
    """Statistics of real images, their features (n, d) where they were kept, and `facts`: what they are of.

    FID needs the statistics, KID and memorisation need the features.
    """

    statistics: FeatureStatistics
    features: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, features: Tensor, **facts: Any) -> Reference:
        """Of features (n, d) that are there."""
        return cls(FeatureStatistics.of(features), features, facts)

    def to(self, device: torch.device | str) -> Reference:
        """The same on another device, where it is compared then."""
        features = None if self.features is None else self.features.to(device)
        return Reference(self.statistics.to(device), features, self.facts)


def reference(
    name: str,
    split: str,
    inception: Inception,
    *,
    features: bool = True,
    count: int | None = None,
    images: Tensor | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> Reference:
    """A split of an image set as the network sees it, from the cache, or looked at now and put there.

    `count` takes so many images, drawn once and for all, instead of the whole split. For a set that `load_images` does
    not know, give its `images` (n, c, h, w), uint8, with a name of yours. Without `features` only statistics are kept:
    34 MB, where 50 000 images have 410 MB of features. Another network, precision or set of images is kept apart.
    """
    pixels = load_images(name, split).images if images is None else _own(images, name, split)
    pixels = pixels if count is None else _drawn(pixels, count, name, split)
    facts = _facts(name, split, inception, pixels)
    found = kept_features(facts)
    if found is None and features:
        found = inception.features(pixels, batch, progress)
        keep_features(facts, found)
    statistics = kept_statistics(facts)
    if statistics is None:
        statistics = _look(pixels, inception, batch, progress) if found is None else _summed(found, inception)
        keep_statistics(facts, statistics)
    return Reference(statistics, found if features else None, facts)


def reference_statistics(
    name: str,
    split: str,
    inception: Inception,
    *,
    count: int | None = None,
    images: Tensor | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> FeatureStatistics:
    """The statistics alone, as `reference` finds them without keeping features: all that FID needs."""
    options: dict[str, Any] = {"count": count, "images": images, "batch": batch, "progress": progress}
    return reference(name, split, inception, features=False, **options).statistics


def _own(images: Tensor, name: str, split: str) -> Tensor:
    if images.dtype != torch.uint8:
        raise UsageError(f"Images of type {images.dtype} were given; give bytes (uint8), as to_bytes makes them.")
    if not re.fullmatch(r"[\w-][\w.-]*", name) or not re.fullmatch(r"[\w-]+", split):
        raise UsageError(f"'{name}', '{split}' cannot name files; use letters, digits and hyphens.")
    return images


def _drawn(images: Tensor, count: int, name: str, split: str) -> Tensor:
    """So many of the images, in their order."""
    if not 2 <= count <= len(images):
        raise UsageError(f"{count} images of {name} were asked for; {split} has {len(images)}, and two are the least.")
    return images[torch.randperm(len(images), generator=generator(0, "reference"))[:count].sort().values]


def _look(images: Tensor, inception: Inception, batch: int, progress: Progress | None) -> FeatureStatistics:
    """Statistics without keeping features, a stretch of images at a time."""
    found = FeatureStatistics()
    for start in range(0, len(images), _STRETCH):

        def tell(done: int, of: int, before: int = start) -> None:
            if progress is not None:
                progress(before + done, len(images))

        part = inception.features(images[start : start + _STRETCH], batch, tell)
        found.update(part.to(inception.device))
    return found


def _summed(features: Tensor, inception: Inception) -> FeatureStatistics:
    """The same, of features that are there: equal parts, so an equal result."""
    found = FeatureStatistics()
    for part in torch.split(features, _STRETCH):
        found.update(part.to(inception.device))
    return found


def _facts(name: str, split: str, inception: Inception, images: Tensor) -> dict[str, Any]:
    """All that features depend on, by which results are named and kept apart."""
    return {
        "set": name,
        "split": split,
        "count": len(images),
        "network": _fingerprint(inception),
        "precision": "tf32" if inception.tf32 else "float32",
        "resize": RESIZE,
        "images": _glimpse(images),
    }


def _fingerprint(inception: Inception) -> str:
    digest = sha256(type(inception.module).__name__.encode())
    for name, tensor in sorted(inception.module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _glimpse(images: Tensor) -> str:
    """Of images spread over the set: all of a large one would be read for nothing, as sets have checksums already."""
    some = images[:: max(1, len(images) // _LOOKED_AT)]
    return sha256(f"{tuple(images.shape)}".encode() + some.cpu().contiguous().numpy().tobytes()).hexdigest()
