"""What FID looks at: features of images by the network that defines it.

Features of any other network give another distance, which must not be called FID.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from anabranch.data import weights
from anabranch.errors import DataError, UsageError
from anabranch.flow import convolutions
from anabranch.metrics._inception_network import FEATURES, SIDE, network
from anabranch.metrics._pixels import resize

Progress = Callable[[int, int], None]
"""Told how many images are done, and of how many."""


class Inception:
    """Features (n, 2048) of images, for FID and for precision and recall.

        inception = Inception.load()                        # after `anabranch data get inception`
        real, made = inception.features(images), inception.features(to_bytes(samples, (3, 28, 28)))
        frechet_distance(real, made)

    In float32 throughout: `tf32=True` lets a GPU round products to ten bits, which is quicker and moves features in the
    third digit.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", tf32: bool = False) -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device).eval()
        # Where the colours of a place lie together convolutions of a CPU take a quarter less time; those of a GPU's
        # tensor cores, which TF32 is for, turn maps round otherwise.
        self.layout = torch.channels_last if tf32 or self.device.type == "cpu" else torch.contiguous_format
        self.module.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.tf32 = tf32

    @classmethod
    def load(cls, path: str | Path | None = None, device: torch.device | str = "cpu", tf32: bool = False) -> Inception:
        """With the weights in a safetensors file, by default those that `anabranch data get inception` put here."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = weights("inception") if path is None else Path(path)
        module = network()
        try:
            module.load_state_dict(load_file(path))
        except OSError as error:
            raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
        except (SafetensorError, RuntimeError) as error:
            raise DataError(
                f"'{path}' does not hold the weights of the FID network; get them with 'anabranch data get inception'."
            ) from error
        return cls(module, device, tf32)

    def features(self, images: Tensor, batch: int = 64, progress: Progress | None = None) -> Tensor:
        """Features (n, 2048) on the CPU, of images (n, 3 or 1, h, w) with values 0 … 255; grey becomes three colours.

        Images are resized to 299 × 299 as TensorFlow 1 does, and scaled to (x − 128) / 128.
        """
        if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise UsageError(
                f"Images of shape {tuple(images.shape)} were given; they must be (n, 3, height, width), or (n, 1, …) if"
                " grey. Rows in [−1, 1] become images by to_bytes."
            )
        if images.dtype != torch.uint8:
            _check_range(images)
        found = torch.empty(len(images), FEATURES)
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            found[start : start + batch] = self._forward(part.to(self.device), len(part) == batch).cpu()
            if progress is not None:
                progress(start + len(part), len(images))
        return found

    @torch.no_grad()
    def _forward(self, images: Tensor, whole: bool) -> Tensor:
        """`whole` is a batch such as most are; for the last one, which may be smaller, no kernels are tried."""
        x = (resize(images, SIDE, SIDE) - 128) / 128
        with convolutions("tf32" if self.tf32 else "ieee", tried=whole and self.device.type == "cuda"):
            found: Tensor = self.module(x.expand(-1, 3, -1, -1).contiguous(memory_format=self.layout))
        return found


def _check_range(images: Tensor) -> None:
    """Refuses images that are plainly not in 0 … 255: their FID would look like one."""
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 255):
        raise DataError(f"Images hold values from {low:.3g} to {high:.3g}; give 0 … 255, as to_bytes does.")
    if high <= 1 and len(images) > 1:
        raise DataError("Images hold no value above 1; FID wants 0 … 255, so multiply images in [0, 1] by 255.")
