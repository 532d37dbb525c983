"""What `export` wrote, read again: the model in a folder, without the run that it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.data import Encoder
from anabranch.errors import AnabranchError, DataError
from anabranch.runs._export_card import CARD, ENCODER, MODEL


@dataclass(frozen=True)
class Exported:
    """The files of a folder: the card, the facts and tensors of the model, and for tables what decodes samples."""

    card: dict[str, Any]
    facts: dict[str, str]
    tensors: dict[str, Tensor]
    encoder: Encoder | None

    @property
    def composes(self) -> bool:
        """Whether it is a composition, which is told attributes."""
        return "space" in self.facts

    @property
    def which(self) -> dict[str, Any]:
        """What tells this model from others."""
        return {"model": self.card["model"]["sha256"]}


def is_exported(place: Path) -> bool:
    """Whether a folder looks like one that `export` wrote."""
    return (place / CARD).is_file() and (place / MODEL).is_file()


def read_exported(folder: Path) -> Exported:
    """The files in the folder, if the model is the one that its card describes. Nothing is unpickled."""
    from safetensors import safe_open

    card, facts = read_facts(folder)
    if hashlib.sha256((folder / MODEL).read_bytes()).hexdigest() != card["model"]["sha256"]:
        raise DataError(f"{MODEL} is not the file that its card describes; export the run again.")
    with safe_open(folder / MODEL, "pt") as file:
        # Copies: where a tensor begins in the file decides how sums over it are rounded.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    encoder = Encoder.from_json((folder / ENCODER).read_text()) if (folder / ENCODER).exists() else None
    return Exported(card, facts, tensors, encoder)


def read_facts(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The card, and what the model's file says of itself, without its parameters."""
    from safetensors import safe_open

    with safe_open(folder / MODEL, "pt") as file:
        return json.loads((folder / CARD).read_text()), file.metadata() or {}


@contextmanager
def exported_at(folder: Path) -> Iterator[None]:
    """Within, whatever is wrong with the files of the folder is said in a sentence about it."""
    from safetensors import SafetensorError

    try:
        yield
    except KeyError as error:
        raise DataError(f"{folder} is no exported model: it does not say {error}.") from error
    except (AnabranchError, OSError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder} is no exported model: {error}") from error
