"""Tensors on disk: safetensors with a checksum, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.errors import CheckpointError, RunFolderError


def save(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Writes tensors and facts (JSON) atomically: temporary name, fsync, rename."""
    from safetensors.torch import save as encode

    body = encode({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    facts = json.dumps({**meta, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    write_atomically(path, len(facts).to_bytes(8, "little") + facts + body)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `save` wrote; a truncated or altered file is refused."""
    from safetensors.torch import load as decode

    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"There is no readable checkpoint at {path} ({error.strerror}).") from error
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        facts = json.loads(data[8:start])
        sound = facts.pop("sha256") == hashlib.sha256(data[start:]).hexdigest()
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"The checkpoint {path} is corrupted: its header cannot be read.") from error
    if not sound:
        raise CheckpointError(f"The checkpoint {path} is corrupted: its checksum does not match.")
    # Copies: where a tensor begins in the file decides how sums over it are rounded.
    return {name: tensor.clone() for name, tensor in decode(data[start:]).items()}, facts


def drop_leftovers(folder: Path) -> None:
    """Removes what processes that were killed while they wrote have left, in a folder that nobody else writes to."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file at `path` in one step; a full or read-only disk is reported in a sentence."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunFolderError.unwritten(path, error) from error
