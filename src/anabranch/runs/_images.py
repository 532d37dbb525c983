"""Image sets as the data of a run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from anabranch import seeds
from anabranch.data import ImageSet, Pixels, load_images
from anabranch.errors import DataError, UsageError
from anabranch.runs._config import Config
from anabranch.runs._sections import DataSettings


def images_of(data: DataSettings, other: ImageSet | None = None) -> Pixels:
    """The training images of the set that `data.target` names: all, or `data.images` of them drawn at random.

    With `other` all those instead, made smaller as the settings say.
    """
    found = other or load_images(data.target, "train")
    if data.images > len(found) and other is None:
        raise UsageError(f"data.images is {data.images}; '{data.target}' has {len(found)} training images.")
    if data.images and other is None:
        order = torch.randperm(len(found), generator=seeds.generator(data.seed, "images"))[: data.images]
        found = found[order.sort().values]
    pixels = _smaller(found.images, data.side) if data.side else found.images
    channels, height, width = pixels.shape[1:]
    return Pixels(pixels.flatten(1).contiguous(), found.label, (channels, height, width))


def check_shape(config: Config, shape: tuple[int, ...]) -> None:
    """Refuses a network for images of another shape than the data's."""
    if config.images.shape and tuple(config.images.shape) != shape:
        raise DataError(
            f"images.shape is {list(config.images.shape)}, and images of '{config.data.target}' are {list(shape)};"
            f" write images.shape = {list(shape)}."
        )


def device_of(config: Config) -> torch.device:
    """Where a run computes: "auto" is a GPU for networks of images where there is one, and the CPU otherwise."""
    name = config.run.device
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("run.device is 'cuda', and there is no GPU here that torch can use; take 'auto' or 'cpu'.")
    if name == "auto":
        name = "cuda" if config.images.shape and torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _smaller(images: Tensor, side: int) -> Tensor:
    """Images (n, c, h, w) averaged down to side × side."""
    if side > min(images.shape[2:]):
        raise UsageError(
            f"data.side is {side}; images of {images.shape[2]} x {images.shape[3]} can only be made smaller."
        )
    return adaptive_avg_pool2d(images.float(), side).round().clamp(0, 255).to(torch.uint8)
