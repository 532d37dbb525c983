"""Tables made usable across silos without pooling: each silo sends one summary, all share one encoder."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from anabranch.data._table import KINDS, MISSING, Table, is_number
from anabranch.errors import DataError, UsageError, unknown

MISSING_RULES = ("refuse", "typical")
"""What `Encoder.encode` can do with missing values."""

_LARGEST = 1e50  # squares and their sums stay far from overflow


@dataclass(frozen=True)
class Summary:
    """What one silo reports about its table.

    For the numeric columns, in the order of `names`, over the values present: how many (`count`), their sum
    (`total`), the sum of their squares about the silo's own mean (`squares`), and whether all are `whole`
    numbers. For the categorical ones, the number of rows in each category.

    It reveals the size, means and variances of the silo and every category that occurs in it, however rare;
    no minimum or maximum. From a column with one or two values present it gives those values away.

    The squares are about the silo's own mean because Σx² − (Σx)²/n cancels: of sixteen digits it keeps four
    for 10⁶ ± 1 and none for 10⁹ ± 1. Together with `total` and `count` both forms say the same.
    """

    names: tuple[str, ...]
    kinds: dict[str, str]
    count: Tensor
    total: Tensor
    squares: Tensor
    whole: Tensor
    categories: dict[str, dict[str, int]]


def summarise(table: Table, kinds: Mapping[str, str], most: int = 100) -> Summary:
    """The silo's summary; a column of more than `most` categories is refused, for it would be sent whole.

    >>> table = Table({"age": ["40", "44"], "town": ["Bonn", "Bonn"]})
    >>> summary = summarise(table, {"age": "numeric", "town": "categorical"})
    >>> summary.total, summary.squares, summary.categories
    (tensor([84.], dtype=torch.float64), tensor([8.], dtype=torch.float64), {'town': {'Bonn': 2}})
    """
    if len(table) == 0:
        raise DataError("The table has no rows; a silo needs some to take part.")
    _check_kinds(table, kinds)
    moments: list[tuple[float, float, float]] = []
    whole: list[bool] = []
    categories: dict[str, dict[str, int]] = {}
    for name, values in table.columns.items():
        if kinds[name] == "numeric":
            numbers = _numbers(name, values)
            added = math.fsum(numbers)
            mean = added / max(len(numbers), 1)
            moments.append((len(numbers), added, math.fsum((x - mean) ** 2 for x in numbers)))
            whole.append(all(x.is_integer() for x in numbers))
        else:
            categories[name] = dict(sorted(Counter(text for text in values if text not in MISSING).items()))
            if len(categories[name]) > most:
                raise DataError(
                    f"Column '{name}' has {len(categories[name])} categories, over the {most} allowed, and a"
                    " summary would list them all; drop the column, group its values or raise the limit."
                )
    count, total, squares = torch.tensor(moments, dtype=torch.float64).reshape(-1, 3).T.contiguous()
    return Summary(
        names=table.names,
        kinds={name: kinds[name] for name in table.names},
        count=count,
        total=total,
        squares=squares,
        whole=torch.tensor(whole, dtype=torch.bool),
        categories=categories,
    )


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, standardised: (value − mean) / deviation. A constant column has deviation 1."""

    name: str
    mean: float
    deviation: float
    whole: bool

    width = 1

    def encode(self, values: Sequence[str], typical: bool) -> Tensor:
        """(n, 1) float64; a missing value is put at the mean if `typical`."""
        _check_missing(self.name, values, typical)
        _numbers(self.name, values)
        numbers = [self.mean if text in MISSING else float(text) for text in values]
        return ((torch.tensor(numbers, dtype=torch.float64) - self.mean) / self.deviation)[:, None]

    def decode(self, x: Tensor) -> list[str]:
        """Whole columns come back as whole numbers, others to at least a 10⁻⁵th of the deviation."""
        numbers = (x[:, 0].double() * self.deviation + self.mean).tolist()
        if self.whole:
            return [str(round(number)) for number in numbers]
        decimals = max(0, 5 - math.floor(math.log10(self.deviation)))
        # the addition of 0.0 turns a rounded −0.0 into 0
        return [f"{round(number, decimals) + 0.0:.15g}" for number in numbers]

    def describe(self) -> str:
        """One line for people."""
        kind = "whole number" if self.whole else "number"
        return f"{self.name}: {kind}, mean {self.mean:.6g}, standard deviation {self.deviation:.6g}"


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories, one-hot in sorted order; `counts` says how often each occurs over all silos."""

    name: str
    categories: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many coordinates it takes."""
        return len(self.categories)

    def encode(self, values: Sequence[str], typical: bool) -> Tensor:
        """(n, width) of zeros and ones; a missing value is the most frequent category if `typical`."""
        _check_missing(self.name, values, typical)
        place = {category: index for index, category in enumerate(self.categories)}
        usual = self.counts.index(max(self.counts))
        indices = [usual if text in MISSING else place.get(text, -1) for text in values]
        if -1 in indices:
            raise DataError(
                f"Column '{self.name}' has {indices.count(-1)} values, the first in row {indices.index(-1) + 1},"
                " in categories that no silo reported; summarise the tables again, with this one among them."
            )
        return torch.eye(self.width, dtype=torch.float64)[torch.tensor(indices, dtype=torch.long)]

    def decode(self, x: Tensor) -> list[str]:
        """The category with the largest coordinate."""
        return [self.categories[index] for index in x.argmax(dim=1).tolist()]

    def describe(self) -> str:
        """One line for people."""
        total = sum(self.counts)
        shares = [f"{name} {count / total:.1%}" for name, count in zip(self.categories, self.counts, strict=True)]
        return f"{self.name}: {self.width} categories, {', '.join(shares)}"


Column = NumericColumn | CategoricalColumn


@dataclass(frozen=True)
class Encoder:
    """One map between table rows and points of R^`dimension` that all silos share.

    >>> table = Table({"age": ["40", "44"], "town": ["Bonn", "Cork"]})
    >>> encoder = merge({"a": summarise(table, {"age": "numeric", "town": "categorical"})})
    >>> encoder.encode(table)
    tensor([[-1.,  1.,  0.],
            [ 1.,  0.,  1.]])
    >>> encoder.decode(torch.tensor([[0.3, 0.2, 0.9]])).columns
    {'age': ['43'], 'town': ['Cork']}
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the coordinates."""
        return tuple(column.name for column in self.columns)

    @property
    def dimension(self) -> int:
        """How many coordinates a row becomes."""
        return sum(column.width for column in self.columns)

    def encode(self, table: Table, missing: str = "refuse") -> Tensor:
        """The rows as float32 points (n, `dimension`); columns are found by name, whatever their order.

        `missing`: "refuse" (an error that names the column), or "typical": the federated mean of a number,
        the most frequent of the categories. Filled-in values narrow the distribution that a model learns.
        """
        if missing not in MISSING_RULES:
            raise unknown("rule for missing values", missing, MISSING_RULES)
        if set(table.names) != set(self.names):
            odd = sorted(set(table.names) ^ set(self.names))[0]
            where = "is in the table but not in the encoder" if odd in table.names else "is not in the table"
            raise DataError(f"Column '{odd}' {where}; tables and encoder must have the same columns.")
        blocks = [column.encode(table.columns[column.name], missing == "typical") for column in self.columns]
        return torch.cat(blocks, dim=1).float()

    def decode(self, x: Tensor) -> Table:
        """The rows that points (n, `dimension`) stand for; any finite point stands for some row."""
        if x.ndim != 2 or x.shape[1] != self.dimension:
            raise DataError(
                f"Points of shape {tuple(x.shape)} cannot be decoded; this encoder needs (n, {self.dimension})."
            )
        if not x.isfinite().all():
            raise DataError("Some of the points to decode are not finite; look at the model that made them.")
        blocks = torch.split(x.detach().cpu(), [column.width for column in self.columns], dim=1)
        return Table({c.name: c.decode(block) for c, block in zip(self.columns, blocks, strict=True)})

    def describe(self) -> str:
        """One line a column, for people."""
        return "\n".join(column.describe() for column in self.columns)

    def to_json(self) -> str:
        """The encoder as text, to be kept beside a model; `from_json` gives back an equal one."""
        return json.dumps([asdict(column) for column in self.columns], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Encoder:
        """The encoder that `to_json` wrote."""
        try:
            return cls(tuple(_column(fields) for fields in json.loads(text)))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"This text is not a table encoder ({error}); write it with to_json.") from error


def merge(summaries: Mapping[str, Summary]) -> Encoder:
    """The encoder of the pooled table, from each silo's summary, by name.

    With n_i, T_i, S_i a silo's count, total and squares: mean μ = ΣT_i / Σn_i, and variance
    Σ(S_i + n_i (T_i/n_i − μ)²) / Σn_i (the exact decomposition within and between silos; Chan et al. 1983).
    Neither depends on the order of the silos.
    """
    if not summaries:
        raise UsageError("No summaries were given; at least one silo must report.")
    _check_agreement(summaries)
    orders = {summary.names for summary in summaries.values()}
    first = next(iter(summaries.values()))
    names = first.names if len(orders) == 1 else tuple(sorted(first.names))
    return Encoder(
        tuple(
            (_merge_numeric if first.kinds[name] == "numeric" else _merge_categorical)(name, summaries)
            for name in names
        )
    )


def _merge_numeric(name: str, summaries: Mapping[str, Summary]) -> Column:
    counts, totals, squares, whole = [], [], [], True
    for summary in summaries.values():
        numeric = [other for other in summary.names if summary.kinds[other] == "numeric"]
        place = numeric.index(name)
        if summary.count[place] > 0:
            counts.append(float(summary.count[place]))
            totals.append(float(summary.total[place]))
            squares.append(float(summary.squares[place]))
            whole &= bool(summary.whole[place])
    if not counts:
        raise DataError(f"Column '{name}' has no value in any silo; leave it out.")
    mean = math.fsum(totals) / sum(counts)
    between = [n * (total / n - mean) ** 2 for n, total in zip(counts, totals, strict=True)]
    deviation = math.sqrt(math.fsum(squares + between) / sum(counts))
    # Equal values seldom average to exactly themselves: what is left within a few roundings of 0 is constant.
    constant = deviation <= 16 * torch.finfo(torch.float64).eps * abs(mean)
    return NumericColumn(name, mean, 1.0 if constant else deviation, whole)


def _merge_categorical(name: str, summaries: Mapping[str, Summary]) -> Column:
    counts: Counter[str] = Counter()
    for summary in summaries.values():
        counts.update(summary.categories[name])
    if not counts:
        raise DataError(f"Column '{name}' has no value in any silo; leave it out.")
    categories = tuple(sorted(counts))
    return CategoricalColumn(name, categories, tuple(counts[category] for category in categories))


def _check_agreement(summaries: Mapping[str, Summary]) -> None:
    (reference, first), *_ = summaries.items()
    for silo, summary in summaries.items():
        numbers = torch.stack((summary.count, summary.squares, summary.total.abs()))
        if not ((numbers >= 0) & (numbers <= _LARGEST**3)).all():
            raise DataError(f"Silo '{silo}' reports sums that no numbers have; look at its summary.")
        odd = sorted(set(first.names) ^ set(summary.names))
        if odd:
            has, lacks = (silo, reference) if odd[0] in summary.names else (reference, silo)
            raise DataError(
                f"Silo '{has}' has a column '{odd[0]}', silo '{lacks}' has not; all silos need the same columns."
            )
        for name in first.names:
            if first.kinds[name] != summary.kinds[name]:
                raise DataError(
                    f"Column '{name}' is {first.kinds[name]} in silo '{reference}' and {summary.kinds[name]}"
                    f" in silo '{silo}'; agree on its kind before summarising."
                )


def _check_kinds(table: Table, kinds: Mapping[str, str]) -> None:
    for name in kinds:
        if name not in table.columns:
            raise unknown("column", name, table.names)
    for name in table.names:
        if name not in kinds:
            raise UsageError(f"Column '{name}' has no kind; say {' or '.join(KINDS)}.")
        if kinds[name] not in KINDS:
            raise unknown("kind of column", kinds[name], KINDS)


def _numbers(name: str, values: Sequence[str]) -> list[float]:
    """The present values as numbers. The error gives a row, not the value, which is the silo's own."""
    bad = [row for row, text in enumerate(values) if text not in MISSING and not is_number(text)]
    if bad:
        raise DataError(
            f"Column '{name}' should hold numbers, but {len(bad)} values, the first in row {bad[0] + 1}, are"
            " none; correct them or call the column categorical."
        )
    numbers = [float(text) for text in values if text not in MISSING]
    if any(abs(number) > _LARGEST for number in numbers):
        raise DataError(f"Column '{name}' has numbers over {_LARGEST:g}; measure it in another unit.")
    return numbers


def _check_missing(name: str, values: Sequence[str], typical: bool) -> None:
    missing = sum(text in MISSING for text in values)
    if missing and not typical:
        raise DataError(
            f"Column '{name}' lacks {missing} of {len(values)} values; fill them in, drop those rows, or"
            " let means and frequent categories stand in: --missing typical, or missing = 'typical' in a file or in"
            " Python."
        )


def _column(fields: dict[str, object]) -> Column:
    if "mean" in fields:
        return _numeric_from(**fields)  # type: ignore[arg-type]
    return _categorical_from(**fields)  # type: ignore[arg-type]


def _numeric_from(name: str, mean: float, deviation: float, whole: bool) -> NumericColumn:
    if not (math.isfinite(mean) and math.isfinite(deviation) and deviation > 0):
        raise ValueError(f"column '{name}' has mean {mean} and deviation {deviation}")
    return NumericColumn(str(name), float(mean), float(deviation), bool(whole))


def _categorical_from(name: str, categories: list[str], counts: list[int]) -> CategoricalColumn:
    if not categories or len(categories) != len(counts):
        raise ValueError(f"column '{name}' has {len(categories)} categories and {len(counts)} counts")
    return CategoricalColumn(str(name), tuple(categories), tuple(counts))
