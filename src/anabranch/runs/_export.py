"""A finished run as something to hand on: the model, a card that says what it is, and what decodes its samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.coupling import Source
from anabranch.data import Cloud, Encoder, shape
from anabranch.errors import CheckpointError, DataError, RunFolderError, UsageError
from anabranch.federation import installed_version, write_atomically
from anabranch.flow import Velocity, integrate
from anabranch.methods.ffm import FlowMatching, FlowServer
from anabranch.runs._build import source_points
from anabranch.runs._config import Config
from anabranch.runs._folder import Checkpoint, RunFolder

MODEL, ENCODER, CARD = "model.safetensors", "encoder.json", "card.json"
_AVERAGED = "average/average."  # how a checkpoint names the parameters that samples come from
_SOURCE = "source/points"  # the tensor of a source that is no formula
_GUARDS = {
    "lookup_noise": "noise on semi-discrete answers",
    "lookup_limit": "limit on semi-discrete answers",
    "gradient_clip": "clip on gradients",
    "gradient_noise": "noise on gradients",
}
_REVEALS = (
    "A generative model can remember training points, above all when it is large and the data small. Nothing here"
    " measures that. Before it is given to others, compare its samples with the rows that must not be recognised."
)


@dataclass(frozen=True)
class ExportedFlow:
    """A flow that was handed on: its velocity, its source, its card, and for tables what decodes its samples."""

    velocity: Velocity = field(repr=False)
    source: Source = field(repr=False)
    dimension: int
    encoder: Encoder | None = field(repr=False)
    card: dict[str, Any] = field(repr=False)

    def sample(self, count: int, nfe: int | None = 10, solver: str = "euler", seed: int = 0) -> Tensor:
        """`count` samples with `nfe` function evaluations: those of `anabranch sample` with the same seed."""
        return integrate(self.velocity, self.source.points(count, seeds.generator(seed, "sample")), nfe, solver).x1


def export(run: Path, out: Path | None = None) -> Path:
    """Writes model.safetensors, card.md, card.json and, for tables, encoder.json; gives the folder, RUN/export."""
    folder, out = RunFolder(run), out or run / "export"
    config = folder.config()
    if config.composes:
        raise UsageError(
            f"{run} ran '{config.method}', a composition, and those cannot be exported yet; hand on the run folder"
            " (config.json and checkpoints), from which 'anabranch sample' works without any data."
        )
    checkpoint = _last_checkpoint(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty; choose another folder with --out, or empty it.")
    model = _model(config, checkpoint)
    card = _card(config, folder, checkpoint, hashlib.sha256(model).hexdigest())
    write_atomically(out / MODEL, model)
    if (run / ENCODER).exists():
        write_atomically(out / ENCODER, (run / ENCODER).read_bytes())
    write_atomically(out / "card.md", _page(card).encode())
    write_atomically(out / CARD, (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    return out


def load_exported(folder: Path) -> ExportedFlow:
    """The flow in a folder that `export` wrote; needs neither the run nor its data. Nothing is unpickled."""
    from safetensors import SafetensorError, safe_open

    try:
        card, digest = json.loads((folder / CARD).read_text()), hashlib.sha256((folder / MODEL).read_bytes())
        with safe_open(folder / MODEL, "pt") as file:
            facts, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        settings, dimension = FlowMatching.from_json(facts["settings"]), int(facts["dimension"])
        encoder = (folder / ENCODER).read_text() if (folder / ENCODER).exists() else None
        expected = card["model"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(f"{folder} is no exported model: {error}") from error
    if digest.hexdigest() != expected:
        raise DataError(f"{folder / MODEL} is not the file that its card describes; export the run again.")
    points = tensors.pop(_SOURCE, None)
    source: Source = shape(settings.flow.source, dimension) if points is None else Cloud(points)
    state = {f"{_AVERAGED}{name}": tensor for name, tensor in tensors.items()}
    state["average/count"] = torch.tensor(0)
    velocity = FlowServer.velocity_of(settings, dimension, state)
    return ExportedFlow(velocity, source, dimension, None if encoder is None else Encoder.from_json(encoder), card)


def _last_checkpoint(folder: RunFolder) -> Checkpoint:
    if not folder.finished:
        raise RunFolderError(f"{folder.path} has not finished; end it with 'anabranch resume', then export it.")
    checkpoint, warnings = folder.load_checkpoint()
    if checkpoint is None:
        raise CheckpointError(" ".join(warnings) or f"{folder.path} has no checkpoint any more; train the run again.")
    if checkpoint.round != (rounds := folder.read_json("results.json")["rounds"]):
        raise CheckpointError(
            f"The last sound checkpoint of {folder.path} is of round {checkpoint.round}; its results are about round"
            f" {rounds}. Train the run again."
        )
    return checkpoint


def _model(config: Config, checkpoint: Checkpoint) -> bytes:
    """The averaged parameters by their names in the network; beside them all that rebuilds it."""
    from safetensors.torch import save

    tensors = {n.removeprefix(_AVERAGED): t for n, t in checkpoint.state.items() if n.startswith(_AVERAGED)}
    settings, given = asdict(config.settings), source_points(config)
    if given is not None:
        tensors[_SOURCE] = given
        settings["flow"]["source"] = Path(config.flow.source).stem  # of a path nothing but the name is handed on
    facts = {"settings": json.dumps(settings), "dimension": str(checkpoint.facts["dimension"])}
    data: bytes = save(tensors, {"made_with": f"anabranch {installed_version()}", **facts})
    return data


def _card(config: Config, folder: RunFolder, checkpoint: Checkpoint, digest: str) -> dict[str, Any]:
    results = folder.read_json("results.json")
    given = source_points(config)
    return {
        "title": f"A generative flow for '{config.problem}'",
        "licence": None,
        "model": {
            "file": MODEL,
            "sha256": digest,
            "what": "velocity field of a flow: a sample starts at a point of the source and follows it from 0 to 1",
            "network": config.flow.network,
            "parameters": sum(t.numel() for n, t in checkpoint.state.items() if n.startswith(_AVERAGED)),
            "dimension": checkpoint.facts["dimension"],
            "source": config.flow.source if given is None else f"{len(given)} given points, part of the model's file",
        },
        "data": _data(config, folder, results["rows"], checkpoint.facts.get("sizes", {})),
        "method": {"name": config.method, "rounds": results["rounds"], "seed": config.seed, **_settings(config)},
        "figures": [
            {key: row.get(key) for key in ("metric", "nfe", "solver", "value")}
            for row in results["rows"]
            if not row["metric"].startswith("bytes_") and not row["metric"].endswith("_seconds")
        ],
        "privacy": {"guards": _guards(config, folder), "reveals": _reveals(folder)},
        "versions": folder.read_json("environment.json"),
    }


def _settings(config: Config) -> dict[str, Any]:
    """The sections that the method used; no path of a file is among them."""
    used = ["coupling", "federation"]
    used += ["semidiscrete"] if config.coupling.name == "semidiscrete" else []
    used += ["potential"] if config.coupling.name in ("potential", "entropic", "balanced") else []
    flow = {key: value for key, value in asdict(config.flow).items() if key != "source"}
    return {"flow": flow, **{name: asdict(getattr(config, name)) for name in used}}


def _data(config: Config, folder: RunFolder, rows: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    silos: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["metric"] in ("bytes_up", "bytes_down"):
            silo = silos.setdefault(row["silo"], {"points": sizes.get(row["silo"])})
            silo[row["metric"]] = silo.get(row["metric"], 0) + int(row["value"])
    held_out = None if config.data.at_sites else config.data.held_out
    return {"where": _where(config, folder, len(silos)), "held_out": held_out, "silos": silos}


def _held_out(share: float | None) -> str:
    return "Each site keeps points of its own for metrics." if share is None else f"Held out for metrics: {share:.0%}."


def _engine(folder: RunFolder) -> str:
    return str(folder.read_json("engine.json")["engine"]) if (folder.path / "engine.json").exists() else "local"


def _where(config: Config, folder: RunFolder, silos: int) -> str:
    if config.data.pooled:
        return "All rows lay in one place: a baseline, not a federation."
    if _engine(folder) == "nvflare":
        return f"The rows lay at {silos} sites, each in processes of its own institution. No row left a site."
    return f"{silos} silos were simulated on one machine. Messages passed between them and the server, no row did."


def _guards(config: Config, folder: RunFolder) -> list[str]:
    if _engine(folder) == "nvflare":
        return ["noise, clips and limits as each site has set them for itself; they are not known here"]
    found = [f"{words}: {value:g}" for key, words in _GUARDS.items() if (value := getattr(config.privacy, key))]
    if config.coupling.name == "semidiscrete" and config.coupling.group > 1:
        found.append(f"semi-discrete answers rest on groups of at least {config.coupling.group} points")
    return found


def _reveals(folder: RunFolder) -> list[str]:
    if not (folder.path / ENCODER).exists():
        return [_REVEALS]
    return [_REVEALS, "encoder.json holds means and deviations of columns, and every category with its count."]


def _page(card: Mapping[str, Any]) -> str:
    """The card for people."""
    model, data, method, privacy = (card[key] for key in ("model", "data", "method", "privacy"))
    settings = {f"{name}.{key}": v for name, s in method.items() if isinstance(s, dict) for key, v in s.items()}
    parts = {
        "Model": f"The {model['what']}.\n\n"
        + _table(("", ""), [(key, model[key]) for key in ("network", "parameters", "dimension", "source", "sha256")]),
        "Data": f"{data['where']} {_held_out(data['held_out'])}\n\n"
        + _table(
            ("silo", "points", "bytes received", "bytes sent"),
            [
                (name, s["points"] or "not recorded", s.get("bytes_down", 0), s.get("bytes_up", 0))
                for name, s in data["silos"].items()
            ],
        ),
        "Method": f"{method['name']}, {method['rounds']} rounds, seed {method['seed']}.\n\n"
        + _table(("setting", "value"), settings.items()),
        "Figures": _table(
            ("metric", "evaluations", "solver", "value"),
            [(f["metric"], f["nfe"] or "", f["solver"] or "", f"{f['value']:.4g}") for f in card["figures"]],
        ),
        "Privacy": "\n".join(f"- {line}" for line in [*(privacy["guards"] or ["no guards"]), *privacy["reveals"]]),
        "Versions": _table(("", ""), card["versions"].items()),
        "Licence": card["licence"] or "To be stated by whoever hands this on.",
    }
    return f"# {card['title']}\n" + "".join(f"\n## {name}\n\n{text}\n" for name, text in parts.items())


def _table(header: tuple[str, ...], lines: Any) -> str:
    rows = [header, ("---",) * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
