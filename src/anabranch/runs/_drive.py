"""Drives a server half: logs, saves, resumes, evaluates. The server half itself opens no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anabranch.errors import CheckpointError, Paused, RunFolderError
from anabranch.federation import Federation, Ledger
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.ffm import FlowServer, Progress
from anabranch.runs._attributed import spelling_hints
from anabranch.runs._build import Assembly, build_attributed, build_federation, build_silos, source_points
from anabranch.runs._clock import Clock, Looks, Server
from anabranch.runs._config import Config
from anabranch.runs._distance import compare
from anabranch.runs._evaluate import Evaluation, Row, evaluate
from anabranch.runs._evaluate_composition import evaluate_composition
from anabranch.runs._folder import Checkpoint, RunFolder
from anabranch.runs._interrupts import interrupts, stopping
from anabranch.runs._stored import check_holders, facts_of, given_experts, keep_experts

Listener = Callable[[Progress, Federation], None]
Assemble = Callable[[Config, RunFolder], Assembly]


def run_name(config: Config, folder: RunFolder) -> str:
    """Under which silos know the run."""
    return f"{config.recipe}/{config.problem}/{config.method}/{config.seed}/{folder.identity}"


def simulate(config: Config, folder: RunFolder) -> Assembly:
    """All silos in this process, as the config describes them."""
    ledger = Ledger()
    encoder, shape = None, config.experts.shape
    if config.composes:
        silos, shape = build_attributed(config, folder.path)
    else:
        silos, encoder = build_silos(config, folder.path, ledger)
    federation = build_federation(config, silos)
    federation.ledger = ledger
    return Assembly(federation, silos, encoder, shape)


@dataclass
class Notes:
    """Where a run tells people what it does: each round, and now and then a sentence.

    `pause` is asked after every checkpoint; when it says so, the run stops there, to be continued. `looks` are taken at
    the server itself, in a simulation or elsewhere, while no time counts.
    """

    progress: Listener = lambda progress, federation: None
    say: Callable[[str], None] = lambda sentence: None
    pause: Callable[[Progress, Federation], bool] = lambda progress, federation: False
    looks: Looks = field(default_factory=Looks)


def train(config: Config, path: Path, notes: Notes | None = None, assemble: Assemble = simulate) -> list[Row]:
    """Runs a config in a folder to the end, from wherever an earlier call left it; returns the result rows.

    `assemble` brings the silos together: in this process by default.
    """
    folder = RunFolder(path)
    with folder.locked():
        folder.begin(config)
        return _run(config, folder, notes or Notes(), assemble)


def resume(path: Path, notes: Notes | None = None) -> list[Row]:
    """Continues the run in a folder, to the same parameters as an uninterrupted one."""
    folder = RunFolder(path)
    if not (path / "config.json").exists():
        raise RunFolderError(f"{path} is no run folder: it has no config.json. Start a run with 'anabranch train'.")
    with folder.locked():
        return _run(folder.config(), folder, notes or Notes(), simulate)


def _run(config: Config, folder: RunFolder, notes: Notes, assemble: Assemble) -> list[Row]:
    if folder.finished:
        rows: list[Row] = folder.read_json("results.json")["rows"]
        return rows
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.compares:
        federation = _assembled(config, folder, assemble).federation
        return compare(config, folder, federation, run_name(config, folder), notes.progress)
    assembly = _assembled(config, folder, assemble)
    server, done = _restore(config, folder, notes, assembly)
    seconds = _train(config, folder, server, done, notes, _facts(server, config, assembly))
    notes.say("Evaluating.")
    evaluation = _evaluated(config, server, assembly)
    evaluation.rows.extend(_times(config, folder))
    folder.save_arrays("samples.npz", evaluation.arrays)
    rounds = max(folder.checkpoints(), default=0)  # not all, where minutes are limited
    folder.write_json("results.json", {"seconds": seconds, "rounds": rounds, "rows": evaluation.rows})
    return evaluation.rows


def _assembled(config: Config, folder: RunFolder, assemble: Assemble) -> Assembly:
    """The silos, brought together; what tables were encoded with is kept."""
    assembly = assemble(config, folder)
    if assembly.encoder is not None and not (folder.path / "encoder.json").exists():
        folder.write_json("encoder.json", json.loads(assembly.encoder.to_json()))
    return assembly


def _evaluated(config: Config, server: Server, assembly: Assembly) -> Evaluation:
    if isinstance(server, CompositionServer):
        return evaluate_composition(config, server, assembly.shape or config.experts.shape)
    return evaluate(config, server, assembly.silos)


def _restore(config: Config, folder: RunFolder, notes: Notes, assembly: Assembly) -> tuple[Server, int]:
    federation = assembly.federation
    _say_beforehand(config, assembly, notes)
    run = run_name(config, folder)
    federation.open(run, config.seed)
    checkpoint, warnings = folder.load_checkpoint()
    for warning in warnings:
        notes.say(warning)
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


def _say_beforehand(config: Config, assembly: Assembly, notes: Notes) -> None:
    """What whoever described the run may not have meant; said before coverage is refused, perhaps for just that."""
    if assembly.silos and config.federation.fused and (config.privacy.gradient_clip or config.privacy.gradient_noise):
        notes.say("Gradients are clipped or noised inside every silo, so that silos cannot share one pass.")
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


def _facts(server: Server, config: Config, assembly: Assembly) -> dict[str, Any]:
    """What a checkpoint must say beside the server's state."""
    federation = server.federation
    known: dict[str, Any] = {"run": federation.run, "dimension": federation.dimension, "sizes": federation.sizes}
    if isinstance(server, CompositionServer):
        known |= facts_of(server, assembly.shape or config.experts.shape)
    return known


def _train(config: Config, folder: RunFolder, server: Server, done: int, notes: Notes, facts: dict[str, Any]) -> float:
    """Trains, logging, saving and looked at on the way; an interrupt saves and is raised again.

    Gives the seconds spent in all."""
    log_every = 1 if config.composes else config.run.log_every  # there a round is many steps
    records = folder.metrics()
    folder.truncate_metrics(done)
    earlier = saved = max((r.get("seconds", 0.0) for r in records if r["round"] <= done), default=0.0)
    if _over(config, server, done, earlier):
        return earlier
    remarks = server.warnings  # into the log once, with its next line
    due, clock = sorted(mark for mark in notes.looks.after if mark > earlier), Clock(earlier)
    with (
        interrupts(lambda: notes.say(stopping(folder))) as interrupted,
        (folder.path / "metrics.jsonl").open("a") as log,
    ):
        for progress in server.run(done):
            over = _over(config, server, progress.round, clock.seconds)
            last = over or progress.round == progress.rounds
            if isinstance(server, CompositionServer) and progress.phase == "experts":
                keep_experts(folder, server)
            if progress.round % log_every == 0 or last or progress.failures:
                record = _record(progress, server.federation, clock.seconds)
                log.write(json.dumps(record | ({"notes": remarks} if remarks else {})) + "\n")
                log.flush()
                remarks = []
            notes.progress(progress, server.federation)
            while due and clock.seconds >= due[0]:
                with clock.stopped() as seconds:
                    notes.looks.look(due.pop(0), server, progress, seconds)
            if last or interrupted.is_set() or _saves(config, server, progress.round, clock.seconds - saved):
                _save(folder, server, progress.round, facts)
                saved = clock.seconds
                if not last and notes.pause(progress, server.federation):
                    raise Paused(f"The run paused after round {progress.round}, to be continued.")
            if interrupted.is_set():
                notes.say(f"Stopped after round {progress.round}; continue with: anabranch resume {folder.path}")
                raise KeyboardInterrupt
            if over:
                notes.say(_ending(config, progress))
                break
    return clock.seconds


def _over(config: Config, server: Server, number: int, seconds: float) -> bool:
    """Whether the minutes are used up; what comes before the flow is always finished, and counts."""
    started = number > server.rounds - server.phases[-1].rounds
    return started and 0 < 60 * config.run.minutes <= seconds


def _saves(config: Config, server: Server, number: int, since: float) -> bool:
    """Whether a checkpoint is due: by its round, or so many seconds after the last one."""
    every = config.run.checkpoint_every or max(1, server.rounds // 20)
    return number % every == 0 or 0 < 60 * config.run.checkpoint_minutes <= since


def _ending(config: Config, progress: Progress) -> str:
    found = f"{config.run.minutes:g} minutes of training are over, after round {progress.round} of {progress.rounds}."
    if config.flow.schedule == "constant" or progress.round == progress.rounds:
        return found
    return f"{found} The rate was to fall until the last one; lower flow.rounds to what the minutes suffice for."


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


def _save(folder: RunFolder, server: Server, number: int, facts: dict[str, Any]) -> None:
    """Silos first, then the server: a server checkpoint never stands alone. Silos keep what either of the server's two
    last checkpoints may still need."""
    saved = folder.checkpoints()
    server.federation.keep(oldest=saved[-1] if saved else 0)
    ledger = server.federation.ledger.state()
    folder.save_checkpoint(Checkpoint(number, server.state(), {**facts, "ledger": ledger}))


def _record(progress: Progress, federation: Federation, seconds: float) -> dict[str, object]:
    return {
        "round": progress.round,
        "rounds": progress.rounds,
        "phase": progress.phase,
        **{name: float(value) for name, value in progress.metrics.items()},
        "bytes_down": federation.ledger.bytes("down"),
        "bytes_up": federation.ledger.bytes("up"),
        "seconds": round(seconds, 3),
        **({"failures": progress.failures} if progress.failures else {}),
    }
