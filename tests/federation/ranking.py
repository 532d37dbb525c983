"""What `test_ranks.py` has two processes do, started by torchrun: `-m tests.federation.ranking FOLDER`.

Each writes what it saw to FOLDER/rank-N.json.
"""

import hashlib
import importlib
import io
import json
import os
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import anabranch.runs._clock as clock
from anabranch.errors import AnabranchError, Paused
from anabranch.federation import (
    Federation,
    Message,
    Participation,
    RankedEngine,
    Ranks,
    Silo,
    answers,
    answers_together,
    encode,
)
from anabranch.methods.ffm import FlowServer
from anabranch.runs import Looks, Notes, resume, train
from tests.runs.tiny import tiny

COUPLINGS = ["independent", "minibatch", "potential", "entropic", "balanced", "semidiscrete", "groups"]
DIVISIONS = ["alike", "unlike"]  # two silos of one size, and three of different sizes
PAUSED = "unlike"  # the division whose runs are stopped half-way, and resumed
INTERRUPTED = 4  # the round
OWN = """
problem = "own"
method = "lot"
flow = { source = "8gaussians", rounds = 6, batch = 16 }
data = { target = "moons", points = 40, groups = [[0], [1]] }
evaluation = { nfe = [1], points = 32, batches = 1, dopri5 = false }
"""


@dataclass(frozen=True)
class Weigh(Message, kind="test.ranks.weigh"):
    """Asks for a silo's numbers.

    Reveals: nothing; it belongs to the tests.
    """

    scale: Tensor


@dataclass(frozen=True)
class Weighed(Message, kind="test.ranks.weigh.reply"):
    """Numbers of several types and shapes.

    Reveals: nothing; it belongs to the tests.
    """

    single: dict[str, Tensor]
    double: Tensor
    plain: float


@answers(Weigh)
def weigh(silo, question) -> Weighed:
    trouble = getattr(silo, "trouble", "")
    if trouble == "raises":
        raise ValueError("the disk is gone")
    if trouble == "memory":
        raise MemoryError
    first = float(silo.data.x[0, 0]) * (float("nan") if trouble == "nan" else 1.0)
    single = {"a": torch.full((2, 3), first), "b": question.scale * first}
    return Weighed(single, torch.tensor([first / 3], dtype=torch.float64), first)


@answers_together(Weigh)
def weigh_together(silos, question, weights):
    replies = [weigh(silo, question) for silo in silos]
    pairs = list(zip(weights.tolist(), replies, strict=True))
    single = {name: sum(w * reply.single[name] for w, reply in pairs) for name in ("a", "b")}
    return Weighed(single, sum(w * r.double for w, r in pairs), sum(w * r.plain for w, r in pairs))


QUESTION = Weigh(torch.tensor(2.0))


def silos(**troubles):
    """Five of different sizes: a, c, e are of rank 0 and b, d of rank 1."""
    found = [Silo(name, torch.full((10 + i, 2), i + 1.0), secret=i) for i, name in enumerate("abcde")]
    for silo in found:
        silo.trouble = troubles.get(silo.name, "")
    return found


def opened(ranks, fused=True, participation=None, **troubles):
    found = silos(**troubles)
    engine = RankedEngine(found, ranks, fused) if ranks.count > 1 else None
    federation = Federation(engine or found, participation=participation, **({} if engine else {"fused": fused}))
    federation.open("test", seed=1)
    federation.start_round(1)
    return federation


def digest(message):
    return hashlib.sha256(encode(message)).hexdigest()


def exchanges(ranks):
    """Every kind of question and every kind of trouble: what a server sees, as JSON has it."""
    seen = {}

    def note(name, mean, federation):
        numbers = [*mean.reply.single["b"].flatten().tolist(), *mean.reply.double.tolist(), mean.reply.plain]
        seen[name] = {"numbers": numbers, "answered": mean.answered, "failures": mean.failures}
        seen[name] |= {"ledger": federation.ledger.state(), "bits": digest(mean.reply), "weight": federation.weight}

    for name, options in {
        "fused": {},
        "plain": {"fused": False},
        "raises": {"d": "raises"},
        "not finite": {"a": "nan"},
        "plain, raises": {"fused": False, "b": "raises"},
        "two at random": {"participation": Participation("random", 2)},
    }.items():
        federation = opened(ranks, **options)
        note(name, federation.mean(QUESTION, federation.chosen()), federation)
    federation = opened(ranks)
    note("those of rank 0", federation.mean(QUESTION, ["a", "c"]), federation)
    note("one of rank 1", federation.mean(QUESTION, ["d"]), federation)
    replies = opened(ranks).ask({"b": QUESTION, "e": Weigh(torch.tensor(3.0))})
    seen["asked"] = {name: digest(reply) for name, reply in replies.answers.items()}
    federation = opened(ranks)
    federation.gather(QUESTION)
    engine = federation.engine
    held = getattr(engine, "mine", engine.names)
    seen["gathered"] = next(list(engine.silos[name].gathered[Weighed.kind]) for name in held)
    for fused in (True, False):
        try:
            opened(ranks, fused=fused, b="memory").mean(QUESTION)
        except AnabranchError as error:
            seen[f"memory, {fused}"] = f"{type(error).__name__}: {error}"
    return seen


def config_of(coupling, division):
    """A run in double precision."""
    chosen = {"name": "semidiscrete", "group": 4} if coupling == "groups" else {"name": coupling}
    data = {"partition": "dirichlet", "silos": 3, "alpha": 2.0} if division == "unlike" else {}
    potential = {"every": 3 if coupling == "potential" else 0}
    return tiny(flow={"precision": "float64"}, coupling=chosen, data=data, potential=potential)


def run(config, path, paused):
    """To the end, or stopped by rank 0 at a checkpoint first."""
    if paused:
        with suppress(Paused):
            train(config, path, Notes(pause=lambda progress, federation: progress.round >= 10))
            raise AssertionError("it did not pause")
        return resume(path)
    return train(config, path)


def typed(*words):
    """What a verb prints, and how it ends."""
    from anabranch.cli._verbs import app

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = app(list(words), standalone_mode=False)
    return {"out": out.getvalue(), "code": code or 0}


def training(folder):
    """Runs of every coupling, with a digest of each state that the server of this rank had at a checkpoint."""
    states, state = [], FlowServer.state

    def noted(server):
        found = state(server)
        one = hashlib.sha256()
        for name in sorted(found):
            one.update(found[name].cpu().contiguous().numpy().tobytes())
        states.append(one.hexdigest())
        return found

    FlowServer.state = noted
    seen = {"states": {}, "rows": {}}
    for division in DIVISIONS:
        for coupling in COUPLINGS:
            states.clear()
            name = f"{coupling}, {division}"
            seen["rows"][name] = len(run(config_of(coupling, division), folder / name, division == PAUSED))
            seen["states"][name] = list(states)
    FlowServer.state = state
    return seen


class Standing:
    """A clock that does not go."""

    @staticmethod
    def monotonic():
        return 0.0


def looked_at(folder, ranks):
    """A run that is looked at, and ends, by a clock that stands still on rank 1."""
    seen, goes = [], clock.time
    clock.time = goes if ranks.first else Standing
    looks = Looks([1e-6], lambda mark, server, progress, seconds: seen.append(progress.round))
    train(tiny(run={"minutes": 1e-6, "checkpoint_minutes": 1e-6}), folder / "looked", Notes(looks=looks))
    clock.time = goes
    return seen


def counted(folder):
    """A run that is looked at after some of its rounds."""
    seen = []
    looks = Looks([2, 5], lambda mark, server, progress, seconds: seen.append(progress.round), "rounds")
    train(tiny(), folder / "counted", Notes(looks=looks))
    return seen


def interrupted(folder, ranks):
    """A run in which rank 1 is interrupted; whether this rank stops."""
    step = FlowServer._train

    def stop(server, number):
        if number == INTERRUPTED and not ranks.first:
            os.kill(os.getpid(), signal.SIGINT)
        return step(server, number)

    FlowServer._train = stop
    try:
        train(tiny(), folder / "interrupted")
    except KeyboardInterrupt:
        return True
    finally:
        FlowServer._train = step
    return False


def left(ranks):
    """Threads of this process before all join and after they have left, if a module that keeps groups comes between."""
    keeps = "torch.distributed.nn.functional"
    assert keeps not in sys.modules  # which torch's compiler imports sooner or later
    before = len(list(Path("/proc/self/task").iterdir()))
    ranks.wait()
    importlib.import_module(keeps)
    ranks.leave()
    return before, len(list(Path("/proc/self/task").iterdir()))


def parted(ranks):
    """Rank 1 ends without a word; how long rank 0 takes to miss it, and what it says."""
    ranks.wait()
    if ranks.number == 1:
        os._exit(7)
    started = time.monotonic()
    try:
        ranks.wait()
    except AnabranchError as error:
        return {"said": str(error), "seconds": time.monotonic() - started, "speaks": ranks.speaks()}
    return {"said": "", "seconds": 0.0}


def main(folder):
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it once rank 1 is gone, and rank 0 has to write
    ranks = Ranks.here()
    seen = {"left": left(ranks)}
    seen |= {"exchanges": exchanges(ranks), "training": training(folder), "looked": looked_at(folder, ranks)}
    seen["clock"] = ranks.clock(2.5 + ranks.number)
    seen["counted"] = counted(folder)
    seen["interrupted"] = interrupted(folder, ranks)
    with suppress(Paused):
        train(config_of("semidiscrete", "unlike"), folder / "one goes on", Notes(pause=lambda *_: True))
    if (folder / "two go on").exists():
        resume(folder / "two go on")
    if ranks.first:
        (folder / "own.toml").write_text(OWN)
    ranks.wait()
    seen["typed"] = typed("train", str(folder / "own.toml"), "--out", str(folder / "own"))
    seen["refused"] = [typed("demo")["code"], typed("train", "dcfm-toy", "--scale", "smoke")["code"]]
    place = folder / f"rank-{ranks.number}.json"
    place.write_text(json.dumps(seen))
    seen["parted"] = parted(ranks)
    place.write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
