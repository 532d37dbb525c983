"""Image sets as the data of a run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from anabranch import seeds
from anabranch.data import ImageSet, Pixels, Points, Progress, load_folder, load_images, share_classes
from anabranch.errors import DataError, UsageError
from anabranch.runs._config import Config
from anabranch.runs._sections import DataSettings


def images_of(data: DataSettings, other: ImageSet | None = None) -> Pixels:
    """The training images of the set or folder that `data.target` names: all, or `data.images` drawn at random.

    With `other` all those instead, made smaller as the settings say.
    """
    if other is not None:
        return _pixels(other, data.side)
    if data.folders:
        return _pixels(_some(read_folders(data)[0], data, data.target), data.side)
    return _pixels(_some(load_images(data.target, "train"), data, data.target), data.side)


def images_of_silos(data: DataSettings, names: Mapping[str, str]) -> dict[str, Pixels]:
    """What each silo holds whose data is a folder of pictures: all, or `data.images` of each. Labels agree.

    `names` are the folders as `data.files` has them, by silo, in that order.
    """
    found = zip(names.items(), read_folders(data), strict=True)
    parts = {silo: _pixels(_some(images, data, name, silo), data.side) for (silo, name), images in found}
    alike(parts)
    return parts


def as_told(found: Pixels, data: DataSettings, name: str, silo: str = "") -> Pixels:
    """The images of an archive of that name: all, or `data.images` of them, as small as the settings say."""
    images = ImageSet(found.bytes.reshape(len(found.bytes), *found.shape), found.labels, ())
    return _pixels(_some(images, data, name, silo), data.side)


def alike(parts: Mapping[str, Points | Pixels]) -> None:
    """Refuses what is neither images of one shape nor points alone; images of another may have as many numbers."""
    shapes = {silo: part.shape if isinstance(part, Pixels) else None for silo, part in parts.items()}
    first = next(iter(shapes))
    for silo, shape in shapes.items():
        if shape == shapes[first]:
            continue
        if shape is None or shapes[first] is None:
            image, other = (first, silo) if shape is None else (silo, first)
            raise DataError(
                f"Silo '{image}' holds images, '{other}' points without a shape; give both as an array 'images' of"
                " bytes, or both as rows 'x'."
            )
        sizes = [" x ".join(map(str, shapes[of] or ())) for of in (first, silo)]
        raise DataError(
            f"Images of '{first}' are {sizes[0]} (colours, height, width), those of '{silo}' {sizes[1]}; all silos need"
            " one shape. data.side makes images smaller, and data.colours turns those of folders grey or coloured."
        )


def read_folders(data: DataSettings, progress: Progress | None = None) -> list[ImageSet]:
    """The pictures in all folders of the settings, with labels that agree; from the cache where they have been read."""
    return share_classes(load_folder(name, data.side, data.colours, progress=progress) for name in data.folders)


def _some(found: ImageSet, data: DataSettings, name: str, silo: str = "") -> ImageSet:
    """As many as the settings say, each folder's drawn anew."""
    if data.images > len(found):
        raise UsageError(f"data.images is {data.images}; '{name}' has {len(found)} training images.")
    if not data.images:
        return found
    generator = seeds.generator(data.seed, "images", silo) if silo else seeds.generator(data.seed, "images")
    return found[torch.randperm(len(found), generator=generator)[: data.images].sort().values]


def _pixels(found: ImageSet, side: int) -> Pixels:
    if side and found.images.shape[2:] != (side, side):
        found = ImageSet(_smaller(found.images, side), found.label, found.classes)
    return found.pixels()


def check_shape(config: Config, shape: tuple[int, ...]) -> None:
    """Refuses a network for images of another shape than the data's."""
    if config.images.shape and tuple(config.images.shape) != shape:
        whose = "the silos" if config.data.files else f"'{config.data.target}'"
        raise UsageError(
            f"images.shape is {list(config.images.shape)}, and images of {whose} are {list(shape)};"
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
