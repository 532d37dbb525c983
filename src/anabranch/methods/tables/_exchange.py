"""Federated standardisation: both halves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from anabranch.data import KINDS as COLUMN_KINDS
from anabranch.data import Encoder, Points, Summary, Table, infer_kinds, merge, summarise
from anabranch.errors import DataError, MessageError, RefusedError, unknown
from anabranch.federation import Done, Federation, Message, Silo, answers


@dataclass(frozen=True)
class Summarise(Message, kind="tables.summarise"):
    """Asks for the summary of a silo's table; `categorical` names columns whose numbers are codes.

    Reveals: nothing of the data.
    """

    categorical: str


@dataclass(frozen=True)
class SummaryReply(Message, kind="tables.summarise.reply"):
    """Counts, sums and squares of every numeric column, and how often each category occurs, as JSON.

    Reveals: the silo's size, means and variances, and every category that occurs in it, however rare. From a column
    with one or two values it gives those values away.
    """

    summary: str

    def validate(self, question: Message) -> None:
        """A summary of some table."""
        try:
            _summary(self.summary)
        except Exception as error:
            raise MessageError(f"A summary arrived that is none ({type(error).__name__}).") from error


@dataclass(frozen=True)
class Encode(Message, kind="tables.encode"):
    """Gives every silo the encoder that the summaries of all make.

    Reveals: means, variances and categories over all silos.
    """

    encoder: str
    missing: str


def agree(federation: Federation, missing: str = "refuse", categorical: tuple[str, ...] = ()) -> Encoder:
    """The server half: collects summaries, merges them, and has every silo encode its own rows."""
    replies = federation.ask(Summarise(json.dumps(categorical)))
    if replies.failures:
        raise DataError(" ".join(replies.failures.values()))
    summaries = {name: _summary(reply.summary) for name, reply in replies.answers.items()}  # type: ignore[attr-defined]
    columns = {name for summary in summaries.values() for name in summary.kinds}
    for name in categorical:
        if name not in columns:
            raise unknown("column", name, columns)
    encoder = merge(summaries)
    hand_out(federation, encoder, missing)
    return encoder


def hand_out(federation: Federation, encoder: Encoder, missing: str = "refuse") -> None:
    """The server half: every silo encodes its own rows with a given encoder."""
    encoded = federation.ask(Encode(encoder.to_json(), missing))
    if encoded.failures:
        raise DataError(" ".join(encoded.failures.values()))


@answers(Summarise)
def summarise_table(silo: Silo, question: Summarise) -> SummaryReply:
    """The silo half: its summary, no row of it."""
    table = _table(silo)
    silo.rests_on(len(table))
    codes = set(json.loads(question.categorical))
    kinds = {name: "categorical" if name in codes else kind for name, kind in infer_kinds(table).items()}
    try:
        values = asdict(summarise(table, kinds))
    except DataError as error:
        raise DataError(f"Silo '{silo.name}': {error}") from error
    plain = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in values.items()}
    return SummaryReply(json.dumps(plain))


@answers(Encode)
def encode_table(silo: Silo, question: Encode) -> Done:
    """The silo half: its rows become its points."""
    try:
        encoder, table = Encoder.from_json(question.encoder), _table(silo)
        width = encoder.dimension
        silo.affords(f"an encoding in {width} coordinates", numbers=2 * width * max(width, len(table)))
        x = encoder.encode(table, question.missing)
    except DataError as error:
        raise DataError(f"Silo '{silo.name}': {error}") from error
    silo.hold(Points(x, torch.zeros(len(x), dtype=torch.long)))
    return Done()


def _table(silo: Silo) -> Table:
    if silo.table is None:
        raise RefusedError(f"Silo '{silo.name}' holds points, not a table.")
    return silo.table


def _summary(text: str) -> Summary:
    """The summary in that JSON; a ValueError where its parts do not fit each other."""
    values: dict[str, Any] = json.loads(text)
    names, kinds, categories = values["names"], values["kinds"], values["categories"]
    numeric = [name for name in names if kinds[name] == "numeric"]
    numbers = {key: torch.tensor(values[key], dtype=torch.float64) for key in ("count", "total", "squares")}
    whole = torch.tensor(values["whole"], dtype=torch.bool)
    if any(tensor.shape != (len(numeric),) for tensor in (*numbers.values(), whole)):
        raise ValueError("as many numbers as numeric columns are needed")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or kinds.keys() != set(names):
        raise ValueError("every column needs one name and one kind")
    if not set(kinds.values()) <= set(COLUMN_KINDS) or categories.keys() != set(names) - set(numeric):
        raise ValueError("a column is numeric, or has categories")
    if not all(type(n) is int and 0 < n < 2**53 for counts in categories.values() for n in counts.values()):
        raise ValueError("categories are counted in whole numbers")
    return Summary(tuple(names), kinds, **numbers, whole=whole, categories=categories)
