"""The layer of classes that the Inception Score needs, from a file that somebody has: it is not fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anabranch.errors import DataError
from anabranch.metrics._inception_network import FEATURES
from anabranch.metrics._inception_score import InceptionScore, class_probabilities, inception_score

CLASSES = 1008  # outputs of the network of 2015, of which eight mean nothing
NAME = "fc.weight"
SUFFIXES = (".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class ClassLayer:
    """Weights (1008, 2048) of the last layer of the network that FID looks through; its bias is left out, as in the
    published score."""

    weight: Tensor

    @staticmethod
    def load(path: str | Path) -> ClassLayer:
        """Of a file of tensors by name (.safetensors, or a state dict in .pt or .pth) that holds `fc.weight`.

        `pt_inception-2015-12-05-6726825d.pth`, as pytorch-fid has it, and torch-fidelity's file of the same weights are
        such. Its other tensors are not looked at, and no code in it is run. torchvision's network has other
        features: its layer, of 1000 classes, is refused.
        """
        from anabranch.flow.unet import read_weights

        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise DataError(f"'{path}' is no file for a layer of classes: its name must end in {', '.join(SUFFIXES)}.")
        found = read_weights(path)
        if NAME not in found:
            raise DataError(
                f"'{path}' has no '{NAME}', the layer of classes; the file of pytorch-fid or torch-fidelity has it,"
                " that of 'anabranch data get inception' has not."
            )
        weight = found[NAME]
        if tuple(weight.shape) != (CLASSES, FEATURES):
            raise DataError(
                f"'{NAME}' in '{path}' has shape {tuple(weight.shape)}; that of the network which FID looks through has"
                f" ({CLASSES}, {FEATURES}). A layer of another network would give another score."
            )
        if not bool(torch.isfinite(weight).all()):
            raise DataError(f"'{NAME}' in '{path}' holds numbers that are not finite; get the file again.")
        return ClassLayer(weight.float())

    def score(self, features: Tensor, generator: torch.Generator, splits: int = 10) -> InceptionScore:
        """Of samples' features (n, 2048), in so many random parts, or n where there are fewer samples."""
        return inception_score(class_probabilities(features, self.weight), generator, min(splits, len(features)))
