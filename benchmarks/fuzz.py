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
import copy
import faulthandler
import json
import math
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anabranch.data import Table, merge
from anabranch.errors import AnabranchError
from anabranch.federation import (
    KINDS,
    Envelope,
    Federation,
    Message,
    Policy,
    Refused,
    RemoteEngine,
    Silo,
    Site,
    decode,
    decode_question,
    encode,
    size,
    tensors_of,
)
from anabranch.federation._message import WIRE_DTYPES, field_types
from anabranch.methods.ffm import FlowServer, Gradient, Histograms, preset
from anabranch.methods.tables import SummaryReply, agree
from anabranch.methods.tables._exchange import _summary
from anabranch.runs import from_dict, merged

LONGEST = 1.0  # seconds of computing for one message
GROWTH = 2**29  # bytes of memory, over what the process held before
ROOM = 2**32  # bytes of addresses: a larger allocation fails, and counts as a violation
# The silos here may do little for one question, so that a question at the bound still takes no time.
MOST_NUMBERS, MOST_WORK = 2**20, 2**30
SMALL = {
    "flow": {"rounds": 2, "batch": 8, "hidden": 4, "layers": 2},
    "potential": {"before": 2, "batch": 8, "hidden": 4, "layers": 2},
    "coupling": {"candidates": 16, "group": 4},
    "semidiscrete": {"rounds": 2, "count": 32, "local_rounds": 2, "noises": 128, "block": 64},
}


# What is real -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A real question and its answer, as they are and as bytes, and the silo as it stood before."""

    silo: Silo
    envelope: Envelope
    asked: bytes
    answered: bytes


def scenes(folder: Path) -> list[Scene]:
    """One or two of every kind of question."""
    found: dict[str, list[Scene]] = {}
    for name, (method, changes) in enumerate(
        [("vanilla", {}), ("lot", {"flow": {"local_steps": 2}}), ("got-entropic", {}), ("sd-protected", {})]
    ):
        for scene in _record(folder / str(name), method, changes):
            found.setdefault(scene.envelope.question.kind, []).append(scene)
    return [scene for kind in sorted(found) for scene in (found[kind][0], found[kind][-1])]


def _record(folder: Path, method: str, changes: Mapping[str, Any]) -> Iterator[Scene]:
    taken: list[Scene] = []
    sites = {}
    for name, first in (("north", 20), ("south", 50)):
        rows = [(str(first + number % 30), "day" if number % 3 else "night") for number in range(40)]
        silo = Silo.of_table(name, Table({"age": [a for a, _ in rows], "shift": [b for _, b in rows]}))
        silo.secret, silo.folder = first, folder / name
        silo.most_numbers, silo.most_work = MOST_NUMBERS, MOST_WORK
        silo.hold_out(0.25, seed=0)
        sites[name] = Site(silo)

    def carry(questions: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        answers: dict[str, bytes | BaseException] = {}
        for name, data in questions.items():
            before = fresh(sites[name].silo)
            answers[name] = answer = sites[name].answer(data)
            taken.append(Scene(before, decode_question(data), data, answer))
        return answers

    federation = Federation(RemoteEngine(sites, carry))
    agree(federation)
    federation.open("fuzz", seed=1)
    config = from_dict(merged(SMALL, {"coupling": {"name": preset(method).coupling.name}}, changes))
    server = FlowServer(config.settings, federation)
    for _ in server.run():
        federation.keep(0)
    federation.rewind(server.rounds)
    server = FlowServer(config.settings, federation)
    federation.gather(Gradient(server.parameters, {}))
    federation.ask(Histograms(torch.eye(federation.dimension), torch.tensor([[-1.0, 1.0]] * federation.dimension)))
    return iter(taken)


def fresh(silo: Silo) -> Silo:
    """A copy that can be asked without changing the original; tensors are never changed in place."""
    found = copy.copy(silo)
    found.state, found.limits, found._last = dict(silo.state), dict(silo.limits), None
    found.cache = {name: copy.copy(value) for name, value in silo.cache.items()}
    found.gathered = dict(silo.gathered)
    return found


# What is made of it -------------------------------------------------------------------------------------------------

DEEP, LONG = '"@deep@"', '"@long@"'  # JSON that Python would not write, put in afterwards
ODD: list[Any] = [None, True, False, 0, -1, 1, 3, 0.5, -0.0, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**12]
ODD += [10**400, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "\ud800", "x" * 5000, "\x1b[2J\n", "NaN"]
ODD += ["@deep@", "@long@", [], {}, [[0, 2**62]], [0, 2**62], [1] * 70, [2**40], {"kind": "join"}, "../../x", "F64"]
ODD += [
    "F8_E4M3",
    "BOOL",
    "I64",
    "refused",
    "ffm.award",
    "balanced",
    "minibatch",
    "semidiscrete",
    "sinkhorn",
    "descent",
]


class Mutator:
    """Makes bad messages of good ones."""

    def __init__(self, seed: int, originals: list[bytes]) -> None:
        self.random = np.random.default_rng(seed)
        self.originals = originals

    def __call__(self, data: bytes, question: bool) -> bytes:
        for _ in range(int(self.random.integers(1, 3))):
            if self._chance(0.75):
                data = self._edited(data, question)
            else:
                ways: list[Callable[[bytes], bytes]] = [self._flip, self._cut, self._insert, self._splice, self._length]
                data = ways[self._below(len(ways))](data)
        return data

    def _below(self, count: int) -> int:
        return int(self.random.integers(max(1, count)))

    def _chance(self, share: float) -> bool:
        return float(self.random.random()) < share

    def _flip(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(1 + self._below(4)):
            if changed:
                changed[self._below(len(changed))] ^= 1 << self._below(8)
        return bytes(changed)

    def _cut(self, data: bytes) -> bytes:
        first, last = sorted((self._below(len(data)), self._below(len(data))))
        return data[:first] if self._chance(0.5) else data[:first] + data[last:]

    def _insert(self, data: bytes) -> bytes:
        place = self._below(len(data))
        return data[:place] + self.random.bytes(1 + self._below(16)) + data[place:]

    def _splice(self, data: bytes) -> bytes:
        other = self.originals[self._below(len(self.originals))]
        return data[: self._below(len(data))] + other[self._below(len(other)) :]

    def _length(self, data: bytes) -> bytes:
        place = [0, 4 + int.from_bytes(data[:4], "little")][self._below(2)]
        blown = [0, 1, 2**16, 2**31, 2**32 - 1][self._below(5)]
        return data[:place] + blown.to_bytes(4, "little") + data[place + 4 :]

    def _edited(self, data: bytes, question: bool) -> bytes:
        """A change in one of the parts that a message consists of; lengths are mended afterwards."""
        try:
            outer, message = _parted(data) if question else (b"", data)
            header, body = _parted(message)
            listed, numbers = _parted(body, 8) if body else (b"", b"")
            which = self._below(8)
            if which == 0 and question:
                outer = self._text(outer)
            elif which in (1, 2) and listed:
                listed = self._text(listed)
            elif which == 3 and numbers:
                numbers = self._numbers(numbers)
            else:
                header = self._text(header)
            body = len(listed).to_bytes(8, "little") + listed + numbers if listed else b""
            if self._chance(0.95):
                values = json.loads(header)
                header = json.dumps({**values, "bytes": len(body)}).encode()
            message = len(header).to_bytes(4, "little") + header + body
            return len(outer).to_bytes(4, "little") + outer + message if question else message
        except (ValueError, TypeError, RecursionError):
            return self._flip(data)

    def _numbers(self, numbers: bytes) -> bytes:
        place, width = 4 * self._below(len(numbers) // 4), [1, 4, 8][self._below(3)]
        bad = [b"\xff" * 8, b"\x00\x00\xc0\x7f" * 2, b"\x00\x00\x80\x7f" * 2, self.random.bytes(8)][self._below(4)]
        return numbers[:place] + bad[:width] + numbers[place + width :]

    def _text(self, text: bytes) -> bytes:
        values = self._edit(json.loads(text))
        changed = json.dumps(values).replace(DEEP, "[" * 3000 + "]" * 3000).replace(LONG, "9" * 5000)
        if self._chance(0.05):
            changed = changed.replace("{", '{"kind":"join",', 1)  # a key twice
        return changed.encode() + b" " * (-len(changed.encode()) % 8)

    def _edit(self, value: Any) -> Any:
        """One node of the tree replaced, removed, renamed or added; JSON inside a string is a tree as well."""
        if isinstance(value, str) and value[:1] in ("{", "[") and self._chance(0.9):
            return json.dumps(self._edit(json.loads(value))).replace(DEEP, "[" * 3000)
        if not isinstance(value, dict | list) or not value or self._chance(0.05):
            return self._odd(value)
        changed: Any = copy.copy(value)
        key = [*value][self._below(len(value))] if isinstance(value, dict) else self._below(len(value))
        what = self._below(20)
        if what == 0:
            del changed[key]
        elif what == 1 and isinstance(changed, dict):
            changed[str(ODD[self._below(len(ODD))])[:200]] = changed.pop(key)
        elif what == 2:
            extra = ODD[self._below(len(ODD))]
            changed.update({"__metadata__": {"a": "b" * 5000}, "extra": extra}) if isinstance(changed, dict) else (
                changed.append(extra)
            )
        else:
            changed[key] = self._edit(value[key])
        return changed

    def _odd(self, value: Any) -> Any:
        """Something else; mostly of the same type, which gets further."""
        if type(value) is bool and self._chance(0.7):
            return not value
        if type(value) is int and self._chance(0.7):
            return [value + 1, value - 1, -value, 2 ** self._below(64), 10 ** self._below(13)][self._below(5)]
        alike = [odd for odd in ODD if type(odd) is type(value)] if self._chance(0.5) else ODD
        return alike[self._below(len(alike))] if alike else None


def _parted(data: bytes, width: int = 4) -> tuple[bytes, bytes]:
    """The header that a length stands before, and the rest."""
    end = width + int.from_bytes(data[:width], "little")
    return data[width:end], data[end:]


# What must hold -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of the messages."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def take(self, data: bytes, judge: Callable[[], str | None]) -> None:
        """One message: `judge` gives the name of a refusal, or None, and raises where something is wrong."""
        started = time.process_time()
        try:
            refusal = judge()
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
    policy = Policy(tuple(KINDS), 10**6, limits={"ffm.lookup": 10**6})
    for number in range(count):
        scene = real[number % len(real)]
        data, book = mutate(scene.asked, question=True), Notebook()
        _watch(number)

        def judge(scene: Scene = scene, data: bytes = data, book: Notebook = book) -> str | None:
            reply = decode(Site(fresh(scene.silo), policy, book).answer(data))  # type: ignore[arg-type]
            cause = book.entry.get("cause", "")
            assert "memory" not in cause.lower(), f"an allocation failed: {cause}"
            if not isinstance(reply, Refused):
                lawful(decode_question(data).question)
                lawful(reply)
                return None
            return f"half failed ({cause.split(':')[0]})" if cause else reply.error

        outcome.take(data, judge)
    faulthandler.cancel_dump_traceback_later()
    return outcome


def attack_server(count: int, real: list[Scene], seed: int) -> Outcome:
    """Mutated answers to a server's own questions."""
    outcome = Outcome()
    mutate = Mutator(seed, [*(scene.answered for scene in real), encode(Refused("RefusedError", "No."))])
    for number in range(count):
        scene = real[number % len(real)]
        refusing = mutate._chance(0.05)
        data = mutate(mutate.originals[-1] if refusing else scene.answered, question=False)
        _watch(number)

        def judge(scene: Scene = scene, data: bytes = data) -> str | None:
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

        outcome.take(data, judge)
    faulthandler.cancel_dump_traceback_later()
    return outcome


def _watch(number: int) -> None:
    """A message that takes for ever ends the process, with a trace."""
    if number % 500 == 0:
        faulthandler.dump_traceback_later(120, exit=True)


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
