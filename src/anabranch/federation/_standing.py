"""The questions that every federation asks, whatever the method."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from anabranch import seeds
from anabranch.data import Pixels
from anabranch.errors import CheckpointError, MessageError
from anabranch.federation import _store
from anabranch.federation._encoding import assemble, head
from anabranch.federation._halves import answers
from anabranch.federation._message import Message, tensors_of
from anabranch.federation._silo import Silo

MOST_DIMENSIONS = 2**20  # of points: the server's network grows with them


@dataclass(frozen=True)
class Join(Message, kind="join"):
    """Opens a run; carries the seed of all randomness that is no secret.

    Reveals: nothing of the data.
    """

    seed: int


@dataclass(frozen=True)
class Joined(Message, kind="join.reply"):
    """The silo's size and dimension, and a random number for seeds that nobody chooses alone.

    Reveals: how many points the silo trains on, and in how many dimensions.
    """

    count: int
    dimension: int
    number: int

    def validate(self, question: Message) -> None:
        """A size that can be."""
        if not (1 <= self.count < 2**53 and 1 <= self.dimension <= MOST_DIMENSIONS):
            raise MessageError(f"A silo of {self.count} points in {self.dimension} dimensions cannot be.")


@dataclass(frozen=True)
class Keep(Message, kind="keep"):
    """Asks the silo to store its own state under this round, and to forget rounds before `oldest`.

    Reveals: nothing of the data.
    """

    oldest: int


@dataclass(frozen=True)
class Rewind(Message, kind="rewind"):
    """Asks the silo to return to the state it stored at `round`.

    Where a method needs no state of the silo (`needed` is false), one that was away when the others stored theirs may
    go on with what it has.

    Reveals: nothing of the data.
    """

    round: int
    needed: bool = True


@dataclass(frozen=True)
class Gathered(Message, kind="gathered"):
    """Gives a silo what every silo answered to a question: their tensors by `silo/field`, the rest as JSON by silo.

    They take the place of earlier answers of the kind, or are `added` to those of other silos.

    Reveals: to each silo the answers of all the others; what those reveal, their own kinds say.
    """

    tensors: dict[str, Tensor]
    heads: str
    added: bool = False

    @staticmethod
    def of(replies: Mapping[str, Message], added: bool = False) -> Gathered:
        """The replies in one message; tensors are not copied."""
        tensors = {f"{name}/{key}": t for name, reply in replies.items() for key, t in tensors_of(reply).items()}
        return Gathered(tensors, json.dumps({name: head(reply) for name, reply in replies.items()}), added)

    def replies(self) -> dict[str, Message]:
        """The replies again, by silo."""
        try:
            heads: Any = json.loads(self.heads)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"Gathered answers arrived that cannot be read ({type(error).__name__}).") from error
        parts = defaultdict[str, dict[str, Tensor]](dict)
        for place, tensor in self.tensors.items():
            name, _, key = place.partition("/")
            parts[name][key] = tensor
        if not isinstance(heads, dict) or not parts.keys() <= heads.keys():
            raise MessageError("Gathered answers arrived that do not say whose they are.")
        return {name: assemble(header, parts[name]) for name, header in heads.items()}


@dataclass(frozen=True)
class Done(Message, kind="done"):
    """Says that a request was carried out.

    Reveals: nothing of the data.
    """


@answers(Join)
def join(silo: Silo, question: Join) -> Joined:
    """Learns the run's seed; whatever an earlier session of the run left is for a rewind to bring back."""
    silo.rests_on(len(silo))
    silo.begin(question.seed)
    number = seeds.derive(silo.secret, "number", question.seed)
    return Joined(len(silo), silo.data.dimension, number)


@answers(Gathered)
def gathered(silo: Silo, question: Gathered) -> Done:
    """Keeps the answers of all silos at hand, until the next ones of that kind."""
    replies = question.replies()
    for kind in {reply.kind for reply in replies.values()}:
        before = silo.gathered.get(kind, {}) if question.added else {}
        silo.gathered[kind] = before | {name: reply for name, reply in replies.items() if reply.kind == kind}
    return Done()


@answers(Keep)
def keep(silo: Silo, question: Keep) -> Done:
    """Stores the state in the silo's folder; a silo that has neither folder nor state has nothing to store."""
    if silo.folder is None and silo.state:
        raise CheckpointError(f"Silo '{silo.name}' has no folder to store its state in.")
    if silo.folder is not None:
        place = _place(silo.folder, silo.run)
        facts = {"run": silo.run, "silo": silo.name, "round": silo.round, "data": _fingerprint(silo)}
        _store.save(_path(place, silo.round), silo.state, facts)
        for old in place.glob("round-*.checkpoint"):
            if old < _path(place, question.oldest):
                old.unlink(missing_ok=True)
        _store.drop_leftovers(place)
    return Done()


@answers(Rewind)
def rewind(silo: Silo, question: Rewind) -> Done:
    """Loads the state stored at that round, or says that there is none."""
    if silo.folder is None:
        raise CheckpointError(f"Silo '{silo.name}' has no folder and cannot return to round {question.round}.")
    path = _path(_place(silo.folder, silo.run), question.round)
    if not question.needed and not path.exists():
        return Done()
    try:
        tensors, meta = _store.load(path)
    except CheckpointError as error:  # whose sentence names a path of the silo's own
        state = "it is corrupted" if path.exists() else "there is none"
        raise CheckpointError(
            f"Silo '{silo.name}' has no readable checkpoint of round {question.round}: {state}."
        ) from error
    if (meta.get("silo"), meta.get("run")) != (silo.name, silo.run):
        owner = f"silo '{meta.get('silo')}' of run '{meta.get('run')}'"
        raise CheckpointError(f"What silo '{silo.name}' found at round {question.round} belongs to {owner}.")
    if meta.get("data") != _fingerprint(silo):
        raise CheckpointError(
            f"Silo '{silo.name}' holds other points than when it stored round {question.round};"
            " give it its old data back, or start a new run."
        )
    silo.go_back(tensors)
    return Done()


_DIGESTS: WeakKeyDictionary[Silo, tuple[Tensor, int, str]] = WeakKeyDictionary()


def _fingerprint(silo: Silo) -> str:
    """The silo's own digest of its points, taken once for as long as they stay as they are: a run keeps states often,
    and all pixels of a large silo are read for it."""
    held = silo.data.bytes if isinstance(silo.data, Pixels) else silo.data.x
    version = 0 if held.is_inference() else held._version  # torch counts changes in place
    known = _DIGESTS.get(silo)
    if known is None or known[0] is not held or known[1] != version:
        known = _DIGESTS[silo] = held, version, silo.fingerprint()
    return known[2]


def _place(folder: Path, run: str) -> Path:
    """A folder for each run, so that one run does not clear away what another needs."""
    return folder / hashlib.sha256(run.encode()).hexdigest()[:16]


def _path(folder: Path, number: int) -> Path:
    return folder / f"round-{number:08d}.checkpoint"
