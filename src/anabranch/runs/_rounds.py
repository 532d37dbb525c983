"""The rounds of a run: logged, saved, looked at, and stopped where they end well."""

from __future__ import annotations

import json
from typing import Any, TextIO

from anabranch.errors import Paused
from anabranch.federation import Federation, Ranks
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.ffm import Progress
from anabranch.runs._build import Assembly
from anabranch.runs._clock import Budget, Clock, Looking, Server
from anabranch.runs._config import Config
from anabranch.runs._folder import Checkpoint, RunFolder
from anabranch.runs._interrupts import interrupts, stopping
from anabranch.runs._notes import Notes
from anabranch.runs._stored import facts_of, keep_experts


def train_rounds(
    config: Config, folder: RunFolder, server: Server, done: int, notes: Notes, assembly: Assembly
) -> float:
    """Trains, logging, saving and looked at on the way; an interrupt saves and is raised again.

    Gives the seconds spent in all. Of several processes rank 0 has the clock, and any may be interrupted."""
    ranks, facts = assembly.ranks, _facts(server, config, assembly)
    log_every = 1 if config.composes else config.run.log_every  # there a round is many steps
    edges = {edge for first, last in server.stretches for edge in (first, last)}  # or phases would be said to take more
    records = folder.metrics()
    folder.truncate_metrics(done)
    earlier = saved = max((r.get("seconds", 0.0) for r in records if r["round"] <= done), default=0.0)
    budget = Budget(config, server, records)
    if budget and budget.spend(done, earlier):
        return earlier
    remarks = server.warnings  # into the log once, with its next line
    clock, looking = Clock(earlier), Looking(notes.looks, config, server, done, earlier, ranks)
    with (
        interrupts(lambda: notes.say(stopping(folder))) as interrupted,
        folder.log() as log,
    ):
        for progress in server.run(done):
            over = bool(budget) and budget.spend(progress.round, ranks.clock(clock.seconds))
            last = over or progress.round == progress.rounds
            if isinstance(server, CompositionServer) and progress.phase == "experts":
                keep_experts(folder, server)
            logged = progress.round % log_every == 0 or progress.round in edges or last or bool(progress.failures)
            if logged:
                remarks = _write(log, progress, server, clock, remarks)
            notes.progress(progress, server.federation)
            looking.take(progress, clock, over)
            stop = ranks.any(interrupted.is_set())
            if last or stop or _saves(config, server, progress.round, clock.seconds - saved, ranks):
                if not logged:  # who goes on from here must know how long it has trained
                    remarks = _write(log, progress, server, clock, remarks)
                _save(folder, server, progress.round, facts)
                saved = clock.seconds
                if not last and ranks.decided(notes.pause(progress, server.federation)):
                    raise Paused(f"The run paused after round {progress.round}, to be continued.")
            if stop:
                notes.say(f"Stopped after round {progress.round}; continue with {folder.again}.")
                raise KeyboardInterrupt
            if over:
                notes.say(
                    f"{config.run.minutes:g} minutes of training are over, after round {progress.round} of"
                    f" {progress.rounds}."
                )
                break
    return clock.seconds


def _facts(server: Server, config: Config, assembly: Assembly) -> dict[str, Any]:
    """What a checkpoint must say beside the server's state."""
    federation = server.federation
    known: dict[str, Any] = {"run": federation.run, "dimension": federation.dimension, "sizes": federation.sizes}
    if isinstance(server, CompositionServer):
        known |= facts_of(server, server.shape or config.experts.shape)
    return known


def _saves(config: Config, server: Server, number: int, since: float, ranks: Ranks) -> bool:
    """Whether a checkpoint is due: by its round, or so many seconds after the last one."""
    every, limit = config.run.checkpoint_every or max(1, server.rounds // 20), 60 * config.run.checkpoint_minutes
    return number % every == 0 or (limit > 0 and ranks.decided(limit <= since))


def _save(folder: RunFolder, server: Server, number: int, facts: dict[str, Any]) -> None:
    """Silos first, then the server: a server checkpoint never stands alone. Silos keep what either of the server's two
    last checkpoints may still need."""
    saved = folder.checkpoints()
    server.federation.keep(oldest=saved[-1] if saved else 0)
    ledger = server.federation.ledger.state()
    folder.save_checkpoint(Checkpoint(number, server.state(), {**facts, "ledger": ledger}))


def _write(log: TextIO, progress: Progress, server: Server, clock: Clock, remarks: list[str]) -> list[str]:
    """A line of the log; gives the remarks that are still to be made, which are none."""
    record = _record(progress, server.federation, clock.seconds)
    log.write(json.dumps(record | ({"notes": remarks} if remarks else {})) + "\n")
    log.flush()
    return []


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
