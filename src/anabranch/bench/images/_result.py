"""What was found: a row for everything measured, kept in a file that several runs may fill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.errors import DataError, UsageError
from anabranch.federation import write_atomically


@dataclass(frozen=True)
class ImageRow:
    """The `figures` of one thing, by name: `what` in a `case` of a `part`; a `note` says what else must be known."""

    part: str
    case: str
    what: str
    figures: Mapping[str, float | None]
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a later measurement of the same thing replaces it by."""
        return self.part, self.case, self.what

    def __getitem__(self, name: str) -> float | None:
        return self.figures.get(name)

    def record(self) -> dict[str, Any]:
        """As it is printed in JSON."""
        names = {"part": self.part, "case": self.case, "what": self.what}
        return {**names, **self.figures, **({"note": self.note} if self.note else {})}

    @staticmethod
    def of(record: Mapping[str, Any]) -> ImageRow:
        """The row of a record."""
        names = ("part", "case", "what", "note")
        figures = {name: value for name, value in record.items() if name not in names}
        return ImageRow(record["part"], record["case"], record["what"], figures, record.get("note", ""))


@dataclass
class ImageFigures:
    """Rows of one network on one machine, by what they are of."""

    machine: Mapping[str, str]
    network: Mapping[str, Any]
    rows: dict[tuple[str, str, str], ImageRow] = field(default_factory=dict)

    def add(self, rows: Iterable[ImageRow]) -> None:
        """Takes these in, in the place of earlier ones of the same things; numbers that are none are refused."""
        for row in rows:
            for name, value in row.figures.items():
                if value is not None and not math.isfinite(value):
                    raise DataError(f"'{name}' of {row.what}, {row.case}, is {value}; training has gone astray.")
            self.rows[row.key] = row

    def find(self, part: str, case: str, what: str) -> ImageRow | None:
        """The row, if it was measured."""
        return self.rows.get((part, case, what))

    def of_part(self, part: str) -> list[ImageRow]:
        """The rows of a part, in the order of their measurement."""
        return [row for row in self.rows.values() if row.part == part]

    def record(self) -> dict[str, Any]:
        """As it is printed in JSON."""
        rows = [row.record() for row in self.rows.values()]
        return {"machine": dict(self.machine), "network": dict(self.network), "rows": rows}

    def save(self, path: Path) -> None:
        """Writes all rows, in one step."""
        write_atomically(path, (json.dumps(self.record(), indent=1) + "\n").encode())

    def merge(self, path: Path) -> None:
        """Takes in what an earlier run has written; figures of another machine or network are refused."""
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text())
            theirs = [(name, found[name], getattr(self, name)) for name in ("machine", "network")]
            rows = [ImageRow.of(record) for record in found["rows"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"'{path}' does not hold figures of an earlier run. Name another file with --out."
            ) from error
        for name, there, here in theirs:
            if there != dict(here):
                raise UsageError(
                    f"'{path}' holds figures of another {name} ({_differing(there, here)}), which cannot stand beside "
                    "those of this one. Name another file with --out."
                )
        self.rows = {**{row.key: row for row in rows}, **self.rows}


def _differing(there: object, here: Mapping[str, Any]) -> str:
    """What differs, with the value there."""
    if not isinstance(there, Mapping):
        return "without a description"
    names = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    return ", ".join(f"{name}: {there.get(name)}" for name in names)
