"""Images made up for measuring: bytes on the device, some in every silo."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from anabranch import seeds
from anabranch.bench.images._work import Case, ImageWork
from anabranch.data import Pixels

_COARSE = 4  # places a side that differ; between them images are smooth, as pictures are


def pixels_of(work: ImageWork, case: Case, flip: str = "random") -> dict[str, Pixels]:
    """As many images in each silo, the same on every machine."""
    colours, height, width = work.images.shape
    shape = (colours, height, width)
    drawn = _drawn(case.silos, max(2, work.held // case.silos), shape, work.device)
    labels = torch.zeros(drawn.shape[1], dtype=torch.long, device=work.device)
    return {f"silo-{number:02d}": Pixels(part, labels, shape, flip) for number, part in enumerate(drawn)}


@lru_cache(maxsize=1)
def _drawn(silos: int, count: int, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Bytes (silos, n, d), drawn once for all that is measured of a case; nobody changes them."""
    return torch.stack(
        [_images(count, shape, seeds.generator(0, "bench", "images", number)) for number in range(silos)]
    ).to(device)


def _images(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Smooth colours with a little noise, as bytes (n, d)."""
    coarse = torch.randn(count, shape[0], _COARSE, _COARSE, generator=generator)
    smooth = interpolate(coarse, shape[1:], mode="bilinear", align_corners=False)
    noisy = 128 + 60 * smooth + 8 * torch.randn(smooth.shape, generator=generator)
    return noisy.clamp(0, 255).to(torch.uint8).flatten(1)
