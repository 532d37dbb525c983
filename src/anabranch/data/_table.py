"""Tables as they come: named columns of text, some of it missing."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from anabranch.errors import DataError

MISSING = frozenset({"", "NA", "NaN", "nan", "?"})
"""The texts that mean "no value here"."""

KINDS = ("categorical", "numeric")
"""What a column can be."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length, as text; `len` is the number of rows.

    >>> table = Table({"age": ["41", "NA"], "town": ["Bonn", "Cork"]})
    >>> len(table), table.names, infer_kinds(table)
    (2, ('age', 'town'), {'age': 'numeric', 'town': 'categorical'})
    """

    columns: dict[str, list[str]]

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError("The table has no columns; at least one is needed.")
        for name, values in self.columns.items():
            if len(values) != len(self):
                raise DataError(
                    f"Column '{name}' has {len(values)} values, '{self.names[0]}' has {len(self)};"
                    " all columns need one length."
                )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self.columns)

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """The table in a CSV file with a header (UTF-8); blanks around names and values are dropped."""
        path = Path(path)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, strict=True)
                lines = [(reader.line_num, [text.strip() for text in row]) for row in reader if row]
        except OSError as error:
            raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"'{path.name}' is not CSV text in UTF-8 ({error}).") from error
        if not lines:
            raise DataError(f"'{path.name}' is empty; its first line must name the columns.")
        (_, header), *rows = lines
        _check_header(header, path.name)
        for line, row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"Line {line} of '{path.name}' has {len(row)} values, the header has {len(header)} names."
                )
        return cls({name: [row[place] for _, row in rows] for place, name in enumerate(header)})

    def divide(self, partition: Mapping[str, Tensor]) -> dict[str, Table]:
        """The rows of each part of a partition, as tables of their own."""
        return {
            part: Table({name: [values[row] for row in index.tolist()] for name, values in self.columns.items()})
            for part, index in partition.items()
        }

    def without(self, column: str) -> Table:
        """The table less one column."""
        return Table({name: values for name, values in self.columns.items() if name != column})

    def write(self, path: str | Path) -> None:
        """Write the table as CSV; `read` gives it back."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(zip(*self.columns.values(), strict=True))


def infer_kinds(table: Table) -> dict[str, str]:
    """`numeric` for a column whose present values are all finite numbers, else `categorical`.

    Numbers that are codes look numeric: override them, as in `infer_kinds(table) | {"postcode":
    "categorical"}`.
    """
    return {
        name: "numeric" if all(text in MISSING or is_number(text) for text in values) else "categorical"
        for name, values in table.columns.items()
    }


def is_number(text: str) -> bool:
    """Whether the text is a finite number; Python's digit groups (1_000) do not count."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _check_header(header: list[str], file: str) -> None:
    if "" in header:
        raise DataError(f"Column {header.index('') + 1} of '{file}' has no name; the header must name every column.")
    twice = [name for place, name in enumerate(header) if name in header[:place]]
    if twice:
        raise DataError(f"'{file}' names the column '{twice[0]}' more than once; names must differ.")
