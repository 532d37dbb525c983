"""Drives a server half: logs, saves, resumes, evaluates. The server half itself opens no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from anabranch.errors import CheckpointError, RunFolderError, UsageError
from anabranch.federation import ALONE, Federation, Ledger, Ranks
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.ffm import FlowServer
from anabranch.runs._attributed import spelling_hints
from anabranch.runs._build import Assembly, build_federation, build_silos, source_points
from anabranch.runs._clock import Server
from anabranch.runs._config import Config
from anabranch.runs._distance import compare
from anabranch.runs._evaluate import Evaluation, Row, evaluate
from anabranch.runs._evaluate_composition import evaluate_composition
from anabranch.runs._folder import Checkpoint, RunFolder
from anabranch.runs._images import device_of
from anabranch.runs._memory import spared_data, spared_judging, spared_method
from anabranch.runs._notes import Notes
from anabranch.runs._onlooker import begun
from anabranch.runs._rounds import train_rounds
from anabranch.runs._stored import check_holders, given_experts

Assemble = Callable[[Config, RunFolder], Assembly]


def run_name(config: Config, folder: RunFolder) -> str:
    """Under which silos know the run."""
    return f"{config.recipe}/{config.problem}/{config.method}/{config.seed}/{folder.identity}"


def simulate(config: Config, folder: RunFolder) -> Assembly:
    """All silos in this process, or shared by those that torchrun started, as the config describes them."""
    ledger, ranks = Ledger(), Ranks.here()
    with ranks.in_turn():  # whoever reads data first may have to write it to a cache
        silos, encoder = build_silos(config, folder.path, ledger, ranks)
    federation = build_federation(config, silos, ranks)
    federation.ledger = ledger
    return Assembly(federation, silos, encoder, ranks)


def train(config: Config, path: Path, notes: Notes | None = None, assemble: Assemble = simulate) -> list[Row]:
    """Runs a config in a folder to the end, from wherever an earlier call left it; returns the result rows.

    `assemble` brings the silos together: in this process by default, or in those that torchrun started; of these rank 0
    writes, speaks and judges, and the others return no rows.
    """
    ranks = Ranks.here() if assemble is simulate else ALONE
    with begun(path, ranks, config) as folder:
        return _run(config, folder, (notes or Notes()).of(ranks), assemble, ranks)


def resume(path: Path, notes: Notes | None = None) -> list[Row]:
    """Continues the run in a folder, to the same parameters as an uninterrupted one."""
    if not (path / "config.json").exists():
        raise RunFolderError(f"{path} is no run folder: it has no config.json. Start a run with 'anabranch train'.")
    found = RunFolder(path)
    found.config()  # a cell says where its run is
    if found.in_a_cell and not found.finished:
        raise RunFolderError(
            f"{path} is the run of a recipe's cell, and may have to be looked at while it trains; go on with"
            f" {found.again}, which does that."
        )
    ranks = Ranks.here()
    with begun(path, ranks) as folder:
        return _run(folder.config(), folder, (notes or Notes()).of(ranks), simulate, ranks)


def _run(config: Config, folder: RunFolder, notes: Notes, assemble: Assemble, ranks: Ranks) -> list[Row]:
    if folder.finished:
        ranks.leave()
        rows: list[Row] = folder.read_json("results.json")["rows"]
        return rows
    if ranks.count > 1 and (config.composes or config.compares):
        raise UsageError(
            f"torchrun shares the silos of a flow ('vanilla', 'lot', 'got', 'sd'); '{config.method}' runs in one"
            " process. Start it without torchrun."
        )
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.compares:
        federation = _assembled(config, folder, assemble).federation
        with spared_method(config):
            return compare(config, folder, federation, run_name(config, folder), notes.progress)
    assembly = _assembled(config, folder, assemble)
    with spared_method(config):
        server, done = _restore(config, folder, notes, assembly)
        seconds = train_rounds(config, folder, server, done, notes, assembly)
    if ranks.count > 1:
        ranks.leave()
        if not ranks.first:
            return []
        assembly, server = _all_here(config, folder, assembly)
    notes.judged(0, 0)
    evaluation = _evaluated(config, server, assembly, notes)
    evaluation.rows.extend(_times(config, folder))
    folder.save_arrays("samples.npz", evaluation.arrays)
    rounds = max(folder.checkpoints(), default=0)  # not all, where minutes are limited
    folder.write_json("results.json", {"seconds": seconds, "rounds": rounds, "rows": evaluation.rows})
    return evaluation.rows


def _assembled(config: Config, folder: RunFolder, assemble: Assemble) -> Assembly:
    """The silos, brought together; what tables were encoded with is kept."""
    with spared_data(config):
        assembly = assemble(config, folder)
    if assembly.encoder is not None and not (folder.path / "encoder.json").exists():
        folder.write_json("encoder.json", json.loads(assembly.encoder.to_json()))
    return assembly


def _all_here(config: Config, folder: RunFolder, assembly: Assembly) -> tuple[Assembly, Server]:
    """What was trained by several processes, in this one alone, with all silos as they were last stored."""
    device = assembly.ranks.device(device_of(config))
    for silo in assembly.silos:
        if silo.device != device:
            silo.hold(silo.data.to(device))
    alone = replace(assembly, federation=build_federation(config, assembly.silos), ranks=ALONE)
    return alone, _restore(config, folder, Notes(), alone)[0]


def _evaluated(config: Config, server: Server, assembly: Assembly, notes: Notes) -> Evaluation:
    with spared_judging(config):
        if isinstance(server, CompositionServer):
            return evaluate_composition(config, server, server.shape or config.experts.shape)
        return evaluate(config, server, assembly.silos, notes.judged)


def _restore(config: Config, folder: RunFolder, notes: Notes, assembly: Assembly) -> tuple[Server, int]:
    federation = assembly.federation
    _say_beforehand(config, assembly, notes)
    run = run_name(config, folder)
    federation.open(run, config.seed)
    checkpoint, warnings = folder.load_checkpoint()
    for warning in warnings:
        notes.say(warning)
    _check_alike(checkpoint, folder, assembly.ranks)
    if checkpoint is not None and checkpoint.facts.get("run") != run:
        raise CheckpointError(
            f"The checkpoint of round {checkpoint.round} in {folder.path} belongs to the run"
            f" '{checkpoint.facts.get('run')}', not to '{run}'; take it away, or start in another folder."
        )
    if checkpoint is not None:
        folder.drop_checkpoints_after(checkpoint.round)
        federation.rewind(checkpoint.round, config.keeps_state_in_silos)
    server = _server(config, folder, federation, notes)
    if checkpoint is None:
        return server, 0
    server.load(checkpoint.state)
    federation.ledger.load(checkpoint.facts["ledger"])
    return server, checkpoint.round


def _check_alike(checkpoint: Checkpoint | None, folder: RunFolder, ranks: Ranks) -> None:
    """Refuses to go on where processes would go on from different rounds."""
    found = {part.decode() for part in ranks.gather(str(checkpoint.round if checkpoint else 0).encode())}
    if len(found) > 1:
        raise CheckpointError(
            f"The processes of this run find checkpoints of different rounds in {folder.path}"
            f" ({', '.join(sorted(found))}); all of them need one folder on a disk that they share."
        )


def _say_beforehand(config: Config, assembly: Assembly, notes: Notes) -> None:
    """What whoever described the run may not have meant; said before coverage is refused, perhaps for just that."""
    if assembly.silos and config.federation.fused and (config.privacy.gradient_clip or config.privacy.gradient_noise):
        notes.say("Gradients are clipped or noised inside every silo, so that silos cannot share one pass.")
    fitting = config.semidiscrete.rounds
    if not config.composes and config.coupling.name == "semidiscrete" and fitting > config.flow.rounds:
        notes.say(
            f"Before the {config.flow.rounds} rounds of the flow come {fitting} that fit its coupling"
            " (semidiscrete.rounds); for a few hundred points fewer may do, as the report's χ² tells."
        )
    if assembly.silos and assembly.silos[0].space is not None:
        for hint in spelling_hints(assembly.silos[0].space):
            notes.say(hint)


def _server(config: Config, folder: RunFolder, federation: Federation, notes: Notes) -> Server:
    """The server half of the method; for a composition with the experts that it starts from, if any."""
    if not config.composes:
        flow = FlowServer(config.settings, federation, source_points(config))
        for warning in flow.warnings:
            notes.say(warning)
        return flow
    given = given_experts(config, folder)
    server = CompositionServer(config.composed, federation, config.data.space, given[0] if given else None)
    if given:
        check_holders(given[1], server.coverage)
    for warning in server.warnings:
        notes.say(warning)
    return server


def _times(config: Config, folder: RunFolder) -> list[Row]:
    """Seconds that each phase took, as `fit_seconds` for duals and `PHASE_seconds` for the others; for a composition
    also the passes of a batch that a step of each phase took, as `PHASE_forward` and `PHASE_backward`."""
    ends: dict[str, float] = {}
    passes: dict[str, float] = {}
    for record in folder.metrics():
        ends[record["phase"]] = record["seconds"]
        passes |= {f"{record['phase']}_{way}": record[way] for way in ("forward", "backward") if way in record}
    key = {"problem": config.problem, "method": config.method, "seed": config.seed, "nfe": None}
    rows, before = [], 0.0
    for phase, end in ends.items():
        name = "fit" if phase == "duals" else phase
        rows.append({**key, "metric": f"{name}_seconds", "value": end - before})
        before = end
    return [*rows, *({**key, "metric": metric, "value": value} for metric, value in passes.items())]
