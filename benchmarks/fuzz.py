"""Broken and hostile messages: whatever arrives, a site answers and a server goes on.

Real runs are recorded, every kind of message with the silo as it stood before it. Then messages are mutated: bits,
cuts, insertions, splices, lengths, and edits of the JSON and of the tensors' list that keep the rest in order, so that
they reach deep. A site meets them as questions, a server as answers to its own real questions. What must hold:

- nothing is raised, by `Site.answer` or by `RemoteEngine.ask`;
- no message takes longer than LONGEST seconds, and none makes an allocation fail or memory grow past a stated limit;
- what is accepted satisfies its schema, and can be encoded again.

    python benchmarks/fuzz.py [--messages 100000] [--seed 0]
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anabranch.data import merge
from anabranch.errors import AnabranchError
from anabranch.federation import (
    KINDS,
    Message,
    Policy,
    Refused,
    RemoteEngine,
    Site,
    decode,
    decode_question,
    encode,
    size,
    tensors_of,
)
from anabranch.federation._message import WIRE_DTYPES, field_types
from anabranch.methods.tables import SummaryReply
from anabranch.methods.tables._exchange import _summary

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a script finds its own folder, not the one above

from benchmarks.fuzzing.mutator import Mutator
from benchmarks.fuzzing.scenes import Scene, fresh, scenes

LONGEST = 1.0  # seconds of computing for one message
GROWTH = 2**29  # bytes of memory, over what the process held before
ROOM = 2**32  # bytes of addresses: a larger allocation fails, and counts as a violation
POLICY = Policy(tuple(KINDS), 10**6, limits={"ffm.lookup": 10**6})  # so wide that a message reaches the silo


@dataclass
class Outcome:
    """What became of the messages."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def take(self, scene: Scene, data: bytes, judge: Callable[[Scene, bytes], str | None]) -> None:
        """One message: `judge` gives the name of a refusal, or None, and raises where something is wrong."""
        started = time.process_time()
        try:
            refusal = judge(scene, data)
        except BaseException as error:
            self.wrong.append(f"{type(error).__name__}: {str(error)[:300]} <- {data[:200]!r} …")
            return
        seconds = time.process_time() - started
        self.slowest = max(self.slowest, seconds)
        if seconds > LONGEST:
            self.wrong.append(f"{seconds:.1f} s for {data[:600]!r} …")
        if refusal is None:
            self.accepted += 1
        else:
            self.refused[refusal] += 1

    def __str__(self) -> str:
        reasons = ", ".join(f"{name} {count}" for name, count in self.refused.most_common())
        return f"{self.accepted} accepted, {self.refused.total()} refused ({reasons}), slowest {self.slowest:.3f} s"


class Notebook:
    """Stands for an audit log, and keeps the last line."""

    def __init__(self) -> None:
        self.entry: dict[str, Any] = {}

    def add(self, **entry: Any) -> None:
        self.entry = json.loads(json.dumps(entry))

    def answered(self, run: str, kind: str) -> int:
        return 0


def lawful(message: Message) -> None:
    """Raises unless the message is what its class declares, and survives the wire."""
    assert KINDS[message.kind] is type(message)
    for name, (hint, optional) in field_types(type(message)).items():
        value = getattr(message, name)
        if value is None:
            assert optional, f"{name} is missing"
        elif hint in (bool, int, float, str):
            assert type(value) is hint, f"{name} is a {type(value)}"
            assert hint is not int or -(2**63) <= value < 2**63, f"{name} is too large"
            assert hint is not float or math.isfinite(value), f"{name} is not finite"
            assert hint is not str or value.encode() is not None
    for name, tensor in tensors_of(message).items():
        assert isinstance(tensor, torch.Tensor) and tensor.dtype in WIRE_DTYPES and tensor.ndim <= 8, name
        assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), f"{name} is not finite"
        assert tensor.dtype != torch.bool or bool((tensor.view(torch.uint8) < 2).all()), f"{name} is not boolean"
    data = encode(message)
    assert type(decode(data)) is type(message) and len(data) == size(message), "another message after encoding"


def attack_site(count: int, real: list[Scene], seed: int) -> Outcome:
    """Mutated questions to a site."""
    outcome, mutate = Outcome(), Mutator(seed, [scene.asked for scene in real])
    for scene in _in_turn(count, real):
        outcome.take(scene, mutate(scene.asked, question=True), _judge_site)
    return outcome


def _judge_site(scene: Scene, data: bytes) -> str | None:
    book = Notebook()
    reply = decode(Site(fresh(scene.silo), POLICY, book).answer(data))  # type: ignore[arg-type]
    cause = book.entry.get("cause", "")
    assert "memory" not in cause.lower(), f"an allocation failed: {cause}"
    if not isinstance(reply, Refused):
        lawful(decode_question(data).question)
        lawful(reply)
        return None
    return f"half failed ({cause.split(':')[0]})" if cause else reply.error


def attack_server(count: int, real: list[Scene], seed: int) -> Outcome:
    """Mutated answers to a server's own questions."""
    outcome, refusal = Outcome(), encode(Refused("RefusedError", "No."))
    mutate = Mutator(seed, [*(scene.answered for scene in real), refusal])
    for scene in _in_turn(count, real):
        answered = refusal if mutate.chance(0.05) else scene.answered
        outcome.take(scene, mutate(answered, question=False), _judge_server)
    return outcome


def _judge_server(scene: Scene, data: bytes) -> str | None:
    replies = RemoteEngine(["a"], lambda questions, patience: {"a": data}).ask({"a": scene.envelope})
    if replies.failures:
        assert replies.failures["a"].isprintable() and len(replies.failures["a"]) < 2100
        return "MessageError" if "was refused" in replies.failures["a"] else "refusal of the site"
    reply = replies.answers["a"]
    lawful(reply)
    if isinstance(reply, SummaryReply):
        try:
            merge({"a": _summary(reply.summary)})
        except AnabranchError:
            return "summary that does not add up"
    return None


def _in_turn(count: int, real: list[Scene]) -> Iterator[Scene]:
    """The scenes, again and again; a message that takes for ever ends the process, with a trace."""
    for number in range(count):
        if number % 500 == 0:
            faulthandler.dump_traceback_later(120, exit=True)
        yield real[number % len(real)]
    faulthandler.cancel_dump_traceback_later()


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Both attacks, and what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="against each side")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        real = scenes(Path(place))
        resource.setrlimit(resource.RLIMIT_AS, (_addresses() + ROOM, resource.RLIM_INFINITY))
        before, started = _peak(), time.monotonic()
        outcomes = {"site": attack_site(options.messages, real, options.seed)}
        outcomes["server"] = attack_server(options.messages, real, options.seed + 1)
    grown = _peak() - before
    for side, outcome in outcomes.items():
        print(f"{side}: {outcome}")
    print(f"{time.monotonic() - started:.0f} s; allowed for one message: {LONGEST} s")
    print(f"memory grew by {grown / 2**20:.0f} MiB; allowed: {GROWTH / 2**20:.0f} MiB")
    wrong = [sentence for outcome in outcomes.values() for sentence in outcome.wrong]
    if grown > GROWTH:
        wrong.append("memory grew past its limit")
    for sentence in wrong[:20]:
        print(f"WRONG: {sentence}")
    print(f"{len(wrong)} violations.")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
