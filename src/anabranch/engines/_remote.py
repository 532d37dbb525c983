"""A run whose silos are elsewhere: what every engine but the local one shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anabranch.data import Encoder
from anabranch.errors import QuorumError
from anabranch.federation import Carry, Federation, Participation, RemoteEngine, write_atomically
from anabranch.methods.tables import agree, hand_out
from anabranch.runs import Assembly, Config, RunFolder, run_name


def assemble_remote(names: Sequence[str], carry: Carry) -> Callable[[Config, RunFolder], Assembly]:
    """Brings together the silos that `carry` reaches. Every answer that counts is written down in answers.jsonl."""

    def assemble(config: Config, folder: RunFolder) -> Assembly:
        settings = config.federation
        if len(names) < settings.quorum:
            raise QuorumError(f"Only {len(names)} sites are present, {settings.quorum} are needed; start more of them.")
        federation = Federation(
            RemoteEngine(names, carry, settings.patience, _book(folder)),
            settings.weights or settings.weighting,
            Participation(settings.participation, settings.count or None, settings.unbiased),
            settings.quorum,
            insist=False,
        )
        federation.run = run_name(config, folder)  # tables are agreed on before the run is opened
        return Assembly(federation, [], _encoder(config, folder, federation))

    return assemble


def _encoder(config: Config, folder: RunFolder, federation: Federation) -> Encoder | None:
    """For tables, the encoder that the sites agree on; a run that goes on keeps the one it began with."""
    if not config.data.tables:
        return None
    path = folder.path / "encoder.json"
    if not path.exists():
        return agree(federation, config.data.missing, config.data.categorical)
    encoder = Encoder.from_json(path.read_text())
    hand_out(federation, encoder, config.data.missing)
    return encoder


def _book(folder: RunFolder) -> Callable[[dict[str, Any]], None]:
    """Writes down every question, who was left out and why, and the digest of every answer that counts."""
    path = folder.path / "answers.jsonl"
    _settle(path)

    def take_down(entry: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    return take_down


def _settle(path: Path) -> None:
    """Says of the last question before a crash that whoever is not accounted for was left out."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    asked: dict[str, Any] = {}
    open_names: list[str] = []
    for entry in map(json.loads, whole.splitlines()):
        if "asked" in entry:
            asked, open_names = entry, list(entry["asked"])
        else:
            open_names = [name for name in open_names if name != entry.get("accepted", entry.get("left_out"))]
    place = {key: value for key, value in asked.items() if key != "asked"}
    lines = [{"left_out": name, "why": "The round was cut off by a crash.", **place} for name in open_names]
    if lines or whole != text:
        write_atomically(path, (whole + "".join(json.dumps(line) + "\n" for line in lines)).encode())
