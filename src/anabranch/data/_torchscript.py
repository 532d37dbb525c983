"""The tensors of a TorchScript archive, taken out of it without running or unpickling anything."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.data._pickled import Call, Name, Object, Reference, describe
from anabranch.errors import DataError

_LARGEST_PICKLE = 2**20  # bytes; Inception's has 28 thousand
_MOST_SIDES = 8  # of a tensor
_TENSOR = Name("torch._utils _rebuild_tensor_v2")
_FLOAT = Name("torch FloatStorage")
_NAMES = (_TENSOR.text, _FLOAT.text, "collections OrderedDict", "torch.jit._pickle build_intlist")


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """The tensors of a TorchScript archive by their paths, as in `net.conv.weight`; its program is not even read.

    The archive is a zip: `data.pkl` says which object holds which tensor, `data/N` are their bytes. An unpickler, and
    so `torch.jit.load`, would call whatever the pickle names; here it is read as a description. All tensors together
    have no more bytes than the file, whatever it claims.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if re.fullmatch(r"[^/]+/data\.pkl", entry.filename)]
            if len(pickles) != 1 or pickles[0].file_size > _LARGEST_PICKLE:
                raise DataError(f"'{path}' is not a TorchScript archive: it needs one data.pkl of a plausible size.")
            root = describe(_stored(archive, pickles[0]), _NAMES)
            storages = _Storages(archive, pickles[0].filename.removesuffix(".pkl"), path.stat().st_size)
            return dict(_walk(root, storages, (), set()))
    except DataError:
        raise
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise DataError(f"'{path}' does not hold tensors in the way that TorchScript stores them: {error}.") from error


@dataclass
class _Storages:
    """The numbers in an archive's data/N, each file at most as often as `left` bytes allow."""

    archive: zipfile.ZipFile = field(repr=False)
    folder: str
    left: int

    def read(self, reference: Any) -> Tensor:
        """All numbers of a storage. Its size is known, and paid for, before a byte of it is read."""
        if not isinstance(reference, Reference):
            raise ValueError("a tensor has no storage")
        kind, dtype, key, _, count = reference.words
        if (kind, dtype) != ("storage", _FLOAT):
            raise DataError("A file of weights holds something else than float32 numbers; it was refused.")
        if type(key) is not str:  # of tuples within tuples, not even the text may be made: it could be of any length
            raise ValueError("a storage has no name")
        entry = self.archive.getinfo(f"{self.folder}/{key}")
        if entry.file_size != 4 * _whole(count):
            raise DataError(
                f"A tensor of the weights has {entry.file_size} bytes, not {4 * count}; the file is damaged."
            )
        self.left -= entry.file_size
        if self.left < 0:
            raise DataError("A file of weights asks for more numbers than it holds; it was refused.")
        return torch.frombuffer(bytearray(_stored(self.archive, entry)), dtype=torch.float32)


def _stored(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry. TorchScript compresses neither pickle nor numbers, so none here can swell."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise DataError(f"'{entry.filename}' in a file of weights is compressed, as TorchScript's never is.")
    return archive.read(entry)


def _walk(node: Any, storages: _Storages, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(node, Object) or node.attributes is None:
        raise ValueError("an object has no attributes")
    if id(node.attributes) in seen:  # a few of them, nested, would have more paths than anyone can walk
        raise ValueError("an object stands in two places")
    seen.add(id(node.attributes))
    for name, value in node.attributes.items():
        if isinstance(value, Object):
            yield from _walk(value, storages, (*path, name), seen)
        elif isinstance(value, Call) and value.name == _TENSOR:
            yield ".".join((*path, name)), _tensor(storages, *value.arguments)


def _tensor(storages: _Storages, reference: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
    """The tensor in a storage; a copy, so that torch has checked that it lies inside."""
    if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride) <= _MOST_SIDES):
        raise ValueError("a tensor has no shape")
    storage = storages.read(reference)
    if math.prod(map(_whole, size)) > len(storage):
        raise DataError(f"A tensor of the weights has shape {size} and {len(storage)} numbers; it was refused.")
    view = storage.as_strided(size, tuple(map(_whole, stride)), _whole(offset))
    return view.clone(memory_format=torch.contiguous_format)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{type(value).__name__} stands where a count should")
    return value
