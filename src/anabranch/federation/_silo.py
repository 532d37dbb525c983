"""A silo: private data, the state that a method keeps there, and what it is willing to answer."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Pixels, Points, Table, check_points, split
from anabranch.data.attributes import AttributeSpace
from anabranch.errors import DataError, RefusedError, UsageError
from anabranch.federation._encoding import encode
from anabranch.federation._halves import plain_answer
from anabranch.federation._means import Means
from anabranch.federation._message import Envelope, Message

STEP = 2**20  # multiplications that any step costs, however small: the time to start it
ANSWERED = "answered/"  # the silo's own count of answers, by kind: part of its state


class Silo:
    """One holder of data.

    `data` never leaves; `held_out` is kept from training and serves metrics, with `held_out_label` where it has labels.
    `state` holds what a method must find again after a restart (tensors by name), `cache` what it can rebuild,
    `gathered` what other silos answered. `limits` bounds how many answers of a kind are given in a run;
    `smallest_group` is the least number of points that an answer may rest on, `smallest_part` the least behind each
    part of an answer in parts, `most_numbers` and `most_work` what one question may cost (None: what the device of its
    points allows, see `Means`). `secret` seeds what the
    server must not be able to foresee, such as privacy noise. Where labels stand for combinations of attributes,
    `space` says which; where points are such images, `shape` is their colours, height and width.
    """

    def __init__(
        self,
        name: str,
        points: Tensor | np.ndarray[Any, Any] | Sequence[Sequence[float]] | Pixels | None,
        label: Tensor | None = None,
        held_out: Tensor | np.ndarray[Any, Any] | None = None,
        limits: Mapping[str, int] | None = None,
        smallest_group: int = 1,
        smallest_part: int = 4,
        secret: int | None = None,
        folder: Path | None = None,
        held_out_label: Tensor | None = None,
        space: AttributeSpace | None = None,
        shape: tuple[int, ...] = (),
    ) -> None:
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"'{name}' cannot be a silo's name; use letters, digits, '-' and '_'.")
        self.name = name
        self.table: Table | None = None
        self._data: Points | Pixels | None = None
        self._share, self._split_seed = 0.0, 0
        self.held_out: Tensor | None = None
        self.held_out_label: Tensor | None = None
        self._labelled = label is not None or isinstance(points, Pixels)
        self.own_classes = False  # whether it counted its classes itself: their numbers mean nothing elsewhere then
        if isinstance(points, Pixels):
            self.hold(points)
        elif points is not None:
            x = check_points(points, f"Silo '{name}'")
            self.hold(Points(x, torch.zeros(len(x), dtype=torch.long) if label is None else label))
        if held_out is not None:
            self.held_out = check_points(held_out, f"Silo '{name}'", smallest=1)
            if held_out_label is not None:
                self.held_out_label = Points(self.held_out, held_out_label).label  # one label a point, or an error
        self.limits = dict(limits or {})
        self.smallest_group, self.smallest_part = smallest_group, smallest_part
        self.space, self.shape = space, shape
        if space is not None:
            space.check_labels(self.data.label, f"Silo '{name}'")
        self.secret = secrets.randbits(62) if secret is None else secret
        self.folder = folder
        self.most_numbers: int | None = None
        self.most_work: int | None = None
        self.state: dict[str, Tensor] = {}
        self.cache: dict[str, Any] = {}
        self.seed = 0
        self.round = 0
        self.sequence = 0
        self.run = ""
        self.gathered: dict[str, dict[str, Message]] = {}
        self._asked: Message | None = None
        self._last: tuple[tuple[str, int, int, int, str], Message] | None = None

    @staticmethod
    def of_table(name: str, table: Table) -> Silo:
        """A silo with a table, which becomes points once the silos have agreed on an encoder."""
        silo = Silo(name, None)
        silo.table = table
        return silo

    @property
    def data(self) -> Points | Pixels:
        """The points that the silo trains on."""
        if self._data is None:
            raise DataError(f"Silo '{self.name}' has no points yet; its table must be encoded first.")
        return self._data

    @property
    def device(self) -> torch.device:
        """Where its points are."""
        return self._data.device if self._data is not None else torch.device("cpu")

    def hold(self, points: Points | Pixels, labelled: bool = False) -> None:
        """Makes these points the silo's data, less those held out; nothing else sets them.

        Where they are `labelled`, labels that are all 0 are meant so.
        """
        self._labelled = self._labelled or labelled
        _check(points, f"Silo '{self.name}'")
        if self._share:
            count = len(points.bytes) if isinstance(points, Pixels) else len(points)
            parts = split(count, self._share, seeds.generator(self._split_seed, "held out", self.name))
            kept = points[parts.held_out]
            kept = replace(kept, flip="none") if isinstance(kept, Pixels) else kept  # each image once
            self.held_out, self.held_out_label = kept.x, kept.label
            points = points[parts.train]
            _check(points, f"Silo '{self.name}', with {len(parts.held_out)} held out,")
        self._data = points

    def hold_out(self, share: float, seed: int) -> None:
        """Keeps this share of the points from training, once they come: those of a table come when it is encoded.

        Which ones follows from the seed and the silo's name. To be called while the silo has no points.

        >>> silo = Silo("a", None)
        >>> silo.hold_out(0.2, seed=0)
        >>> silo.hold(Points(torch.zeros(10, 2), torch.zeros(10, dtype=torch.long)))
        >>> len(silo), len(silo.held_out)
        (8, 2)
        """
        if self._data is not None:
            raise UsageError(f"Silo '{self.name}' has its points already; say what to hold out before it does.")
        if not 0 <= share < 1:
            raise UsageError(f"A share of {share} to hold out was given; it must lie in [0, 1).")
        self._share, self._split_seed = share, seed

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        if self._data is None:
            return f"Silo({self.name!r}, a table not encoded yet)"
        return f"Silo({self.name!r}, {len(self)} points in {self.data.dimension} dimensions)"

    @property
    def labelled(self) -> bool:
        """Whether its points come with labels; where all are 0 they must have been given as such."""
        return self._labelled or bool(self.data.label.any())

    def generator(
        self, *names: str | int, device: torch.device | str = "cpu", at: int | None = None
    ) -> torch.Generator:
        """Random numbers for this silo, round and purpose: the same however often the round is repeated.

        Drawn where they are used, they need not travel; but a GPU draws other numbers than a CPU. `at` gives those
        of another round.
        """
        number = self.round if at is None else at
        return seeds.generator(self.seed, "silo", self.name, number, *names, device=device)

    def shared_generator(self, *names: str | int, at: int | None = None) -> torch.Generator:
        """Random numbers that every silo derives alike in this round, or in another."""
        return seeds.generator(self.seed, "shared", self.round if at is None else at, *names)

    def private_generator(self, *names: str | int) -> torch.Generator:
        """Random numbers that nobody outside the silo can derive, fresh for every question.

        They follow from the question itself as well as from its place: two questions at one place, in two sessions,
        must not get the same noise, or the difference of their answers would be free of it.
        """
        asked = hashlib.sha256(encode(self._asked)).hexdigest() if self._asked is not None else ""
        return seeds.generator(self.secret, "private", self.name, self.round, self.sequence, asked, *names)

    def rests_on(self, points: int) -> None:
        """To be called by a silo half before it answers: refuses an answer that rests on too few points."""
        if points < self.smallest_group:
            raise RefusedError(
                f"Silo '{self.name}' gives no answer that rests on fewer than {self.smallest_group} points;"
                f" this one would rest on {points}."
            )

    def divides(self, parts: int) -> None:
        """To be called by a silo half before it answers in parts: refuses more than its points can hide behind."""
        if parts * self.smallest_part > len(self):
            raise RefusedError(
                f"Silo '{self.name}' gives no answer in {parts} parts: each would rest on fewer than"
                f" {self.smallest_part} of its {len(self)} points. Ask for {len(self) // self.smallest_part} or fewer."
            )

    def affords(self, what: str, numbers: int = 0, work: int = 0) -> None:
        """To be called by a silo half before it works: refuses what would take too much memory or time.

        `numbers` are held at once, `work` counts multiplications; the bounds are `most_numbers` and `most_work`.
        """
        means = Means.of(self.device)
        most_numbers = means.numbers if self.most_numbers is None else self.most_numbers
        most_work = means.work if self.most_work is None else self.most_work
        for cost, most, unit in ((numbers, most_numbers, "numbers"), (work, most_work, "multiplications")):
            if cost > most:
                raise RefusedError(
                    f"Silo '{self.name}' does not do {what}: it would take {cost:.1e} {unit}, and one question may take"
                    f" {most:.1e} on its {'GPU' if self.device.type == 'cuda' else 'CPU'}. Smaller batches or a smaller"
                    f" network take less{'' if self.device.type == 'cuda' else ', and a GPU may take more'}."
                )

    def answer(self, envelope: Envelope) -> Message:
        """The reply to a question; the stored one when the same place of the run is asked again."""
        if self._last is not None and self._last[0] == envelope.place:
            return self._last[1]
        question = envelope.question
        half = plain_answer(type(question))
        if half is None:
            raise RefusedError(f"Silo '{self.name}' knows no answer to '{question.kind}'.")
        self.enter(envelope.run)
        self.round, self.sequence, self._asked = envelope.round, envelope.sequence, question
        self._spend(question)
        reply = half(self, question)
        self._last = (envelope.place, reply)
        return reply

    def begin(self, seed: int) -> None:
        """A session of a run opens: only the count of answers given in this run lives on."""
        spent = {key: value for key, value in self.state.items() if key.startswith(ANSWERED)}
        self.seed = seed
        self.state = spent
        self._clear()

    def _clear(self) -> None:
        self.cache.clear()
        self.gathered.clear()

    def enter(self, run: str) -> None:
        """Nothing of one run may reach into another: not its duals, its pairs, or what it has answered."""
        if self.run and run != self.run:
            self.state.clear()
            self._clear()
        self.run = run

    def go_back(self, state: dict[str, Tensor]) -> None:
        """Takes up an earlier state. What was answered since stays counted: a rewind must not refill a limit."""
        spent = {key: value for key, value in self.state.items() if key.startswith(ANSWERED)}
        self.state = {name: tensor.clone() for name, tensor in state.items()}
        for key, value in spent.items():
            self.state[key] = torch.maximum(value, self.state.get(key, value))
        self._clear()
        self._last = None

    def fingerprint(self) -> str:
        """A digest of the silo's own points, by which it knows them again."""
        held = self.data.bytes if isinstance(self.data, Pixels) else self.data.x
        return hashlib.sha256(held.cpu().contiguous().numpy().tobytes()).hexdigest()

    def _spend(self, question: Message) -> None:
        if question.answers() < 1:
            raise RefusedError(f"Silo '{self.name}' was asked for {question.answers()} answers to '{question.kind}'.")
        limit = self.limits.get(question.kind)
        if limit is None:
            return
        key = f"{ANSWERED}{question.kind}"
        spent = int(self.state.get(key, torch.tensor(0))) + question.answers()
        if spent > limit:
            raise RefusedError(
                f"Silo '{self.name}' gives at most {limit} answers to '{question.kind}' in a run;"
                f" this question would make it {spent}."
            )
        self.state[key] = torch.tensor(spent)


def _check(points: Points | Pixels, owner: str) -> None:
    """Refuses numbers that are none, and too few points. Bytes are always numbers."""
    if not isinstance(points, Pixels):
        check_points(points.x, owner)
    elif len(points.bytes) < 2:
        held = "1 image" if len(points.bytes) == 1 else "no images"
        raise DataError(f"{owner} holds {held}; at least 2 are needed.")
