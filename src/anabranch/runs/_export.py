"""A finished run as something to hand on: the model, a card that says what it is, and what decodes its samples."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.coupling import Source
from anabranch.data import Encoder
from anabranch.errors import CheckpointError, RunFolderError
from anabranch.federation import installed_version, write_atomically
from anabranch.flow import integrate
from anabranch.methods.ffm import FlowServer, FlowVelocity
from anabranch.runs._build import source_points
from anabranch.runs._config import Config
from anabranch.runs._export_card import CARD, ENCODER, MODEL, card_of, flow_sections, page_of
from anabranch.runs._export_composition import ExportedComposition, composition_card, composition_model
from anabranch.runs._exported import exported_at, read_exported
from anabranch.runs._exported_composition import rebuilt_composition
from anabranch.runs._folder import Checkpoint, RunFolder
from anabranch.runs._sample_noise import noise_of
from anabranch.runs._stored import stored_mixture
from anabranch.runs._trained import AVERAGED, SOURCE, handed_on


@dataclass(frozen=True)
class ExportedFlow:
    """A flow that was handed on: its velocity, its source, its card, and for tables what decodes its samples."""

    velocity: FlowVelocity = field(repr=False)
    source: Source = field(repr=False)
    dimension: int
    encoder: Encoder | None = field(repr=False)
    card: dict[str, Any] = field(repr=False)

    def sample(
        self,
        count: int,
        nfe: int | None = 10,
        solver: str = "euler",
        seed: int = 0,
        label: int | None = None,
        weight: float = 1.0,
    ) -> Tensor:
        """`count` samples with `nfe` function evaluations: those of `anabranch sample` with the same seed. Where the
        flow is told classes, those of the class `label`, sharpened by a `weight` above one."""
        velocity = self.velocity.of_class(label, weight)
        return integrate(velocity, noise_of(self.source, count, seed)(0, count), nfe, solver).x1


def export(run: Path, out: Path | None = None) -> Path:
    """Writes model.safetensors, card.md, card.json and, for tables, encoder.json; gives the folder, RUN/export."""
    folder, out = RunFolder(run), out or run / "export"
    config = folder.config()
    checkpoint = _last_checkpoint(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty; choose another folder with --out, or empty it.")
    if config.composes:
        stored = stored_mixture(config, checkpoint)
        own, (tensors, facts) = composition_card(config, stored), composition_model(config, checkpoint, stored)
    else:
        own, (tensors, facts) = _flow_card(config), _flow_model(config, checkpoint)
    model = _written(tensors, facts)
    own["model"] |= {
        "dimension": checkpoint.facts["dimension"],
        "parameters": sum(tensor.numel() for name, tensor in tensors.items() if name != SOURCE),
        "sha256": hashlib.sha256(model).hexdigest(),
    }
    card = card_of(config, folder, checkpoint, own)
    write_atomically(out / MODEL, model)
    if (run / ENCODER).exists():
        write_atomically(out / ENCODER, (run / ENCODER).read_bytes())
    write_atomically(out / "card.md", page_of(card).encode())
    write_atomically(out / CARD, (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    return out


def load_exported(folder: Path) -> ExportedFlow | ExportedComposition:
    """The flow, or the composition, in a folder that `export` wrote; needs neither the run nor its data.

    Nothing is unpickled."""
    with exported_at(folder):
        found = read_exported(folder)
        if found.composes:
            return ExportedComposition(rebuilt_composition(found.facts, found.tensors), found.encoder, found.card)
        flow = handed_on(found)
        velocity = FlowServer.velocity_of(flow.settings, flow.dimension, flow.state)
        return ExportedFlow(velocity, flow.source, flow.dimension, flow.encoder, found.card)


def _last_checkpoint(folder: RunFolder) -> Checkpoint:
    if not folder.finished:
        raise RunFolderError(f"{folder.path} has not finished; end it with {folder.again}, then export it.")
    checkpoint, warnings = folder.load_checkpoint()
    if checkpoint is None:
        raise CheckpointError(" ".join(warnings) or f"{folder.path} has no checkpoint any more; train the run again.")
    if checkpoint.round != (rounds := folder.read_json("results.json")["rounds"]):
        raise CheckpointError(
            f"The last sound checkpoint of {folder.path} is of round {checkpoint.round}; its results are about round"
            f" {rounds}. Train the run again."
        )
    return checkpoint


def _flow_model(config: Config, checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The averaged parameters by their names in the network; beside them all that rebuilds it."""
    tensors = {n.removeprefix(AVERAGED): t for n, t in checkpoint.state.items() if n.startswith(AVERAGED)}
    settings, given = asdict(config.settings), source_points(config)
    if given is not None:
        tensors[SOURCE] = given
        settings["flow"]["source"] = Path(config.flow.source).stem  # of a path nothing but the name is handed on
    return tensors, {"settings": json.dumps(settings), "dimension": str(checkpoint.facts["dimension"])}


def _written(tensors: dict[str, Tensor], facts: dict[str, str]) -> bytes:
    from safetensors.torch import save

    data: bytes = save(tensors, {"made_with": f"anabranch {installed_version()}", **facts})
    return data


def _flow_card(config: Config) -> dict[str, Any]:
    """What the card says of a flow and not of a composition, by the card's own parts."""
    given = source_points(config)
    return {
        "title": f"A generative flow for '{config.problem}'",
        "model": {
            "what": "velocity field of a flow: a sample starts at a point of the source and follows it from 0 to 1",
            "network": config.flow.network,
            "source": config.flow.source if given is None else f"{len(given)} given points, part of the model's file",
        },
        "method": flow_sections(config),
        "reveals": [],
    }
