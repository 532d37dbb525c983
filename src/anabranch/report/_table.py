"""The summary table: methods in rows, quality beside what it cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anabranch.report._statistics import Statistics, Value
from anabranch.runs import Row

MISSING = "–"
WORD = 12  # letters of what may stand in a column of figures in place of one, as in "novel" or "no limit"
# A number, and then at most a spread, a whole that it is of, a count in brackets or a unit.
_FIGURE = re.compile(r"[+−-]?\d[\d.,]*(e[+-]?\d+)?( (±|of) [\d.,e+-]+| \(\d+\)| ?[%\w]{1,3})?")


@dataclass(frozen=True)
class Table:
    """Texts in lines under a header; `best` holds the (line, column) of the best federated value of each problem."""

    header: list[str]
    lines: list[list[str]]
    best: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class _Column:
    title: str
    metric: str
    nfe: int | None
    text: Callable[[float], str]
    distance: Callable[[float], float] | None  # how far from the ideal; None: nothing to be best at


def table(rows: Iterable[Row], nfe: Sequence[int] = (1, 3, 10, 100)) -> Table:
    """Means over seeds, ± their standard deviation; columns and lines without a single value are left out.

    Pooled baselines send nothing between silos, so they have no bytes, and they are never best.
    """
    statistics = Statistics(rows)
    keys = [(problem, method) for problem in statistics.problems for method in statistics.methods(problem)]
    columns = [c for c in _columns(statistics, nfe) if any(_value(statistics, key, c) for key in keys)]
    keys = [key for key in keys if any(_value(statistics, key, column) for column in columns)]
    lines = []
    for key in keys:
        name = f"{key[1]} (pooled)" if statistics.pooled(*key) else key[1]
        lines.append([key[0], name, *(_cell(column, _value(statistics, key, column)) for column in columns)])
    best = {(line, 2 + i) for i, column in enumerate(columns) for line in _best(statistics, keys, column)}
    return Table(["problem", "method", *(column.title for column in columns)], lines, frozenset(best))


def summary_table(rows: Iterable[Row], nfe: Sequence[int] = (1, 3, 10, 100)) -> list[list[str]]:
    """`table` as plain lines, the header first."""
    result = table(rows, nfe)
    return [result.header, *result.lines]


def figure_columns(lines: Sequence[Sequence[str]], names: int = 1) -> list[bool]:
    """Which columns hold figures, to be set to the right; the first `names` are names, be they numbers.

    >>> figure_columns([["digit", "samples", "where"], ["7", "120 (2)", "north"], ["8", "novel", "nowhere"]])
    [False, True, False]
    """
    body = [[line[place] for line in lines[1:] if line[place]] for place in range(len(lines[0]))]
    return [place >= names and _figures(column) for place, column in enumerate(body)]


def _figures(column: Sequence[str]) -> bool:
    rest = [text for text in column if not _FIGURE.fullmatch(text)]
    return len(rest) < len(column) and all(len(text) <= WORD for text in rest)


def number(value: float) -> str:
    """A figure for people: three decimals, or powers of ten where those would hide it.

    >>> number(0.53916), number(0.000123), number(1234.5)
    ('0.539', '1.2e-04', '1234')
    """
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def short(value: float) -> str:
    """A figure where precision matters little: two digits at least.

    >>> short(42.649), short(0.1234), short(1234.0)
    ('42.6', '0.12', '1234')
    """
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _columns(statistics: Statistics, nfe: Sequence[int]) -> list[_Column]:
    columns = []
    for metric, title in (("w2", "W2"), ("sliced_w2", "sliced W2")):
        for count in sorted(set(nfe) & set(statistics.evaluations(metric))):
            steps = "1 step" if count == 1 else f"{count} steps"
            columns.append(_Column(f"{title}, {steps}", metric, count, number, abs))
    for kind in ("known", "novel"):
        columns.append(_Column(f"hits, {kind}", f"hit_{kind}", None, number, lambda share: 1 - share))
        columns.append(_Column(f"W2, {kind}", f"w2_{kind}", None, number, abs))
    columns.append(_Column("sliced W2, known", "sliced_w2_known", None, number, abs))
    columns.append(_Column("sliced W2, floor", "sliced_w2_floor", None, number, None))
    return [
        *columns,
        _Column("straightness", "straightness", None, number, abs),
        _Column("cost ratio", "cost_ratio", None, number, lambda ratio: abs(ratio - 1)),
        _Column("MB up", "bytes_up", None, lambda size: short(size / 1e6), abs),
        _Column("MB down", "bytes_down", None, lambda size: short(size / 1e6), abs),
        _Column("rounds", "rounds", None, lambda count: f"{count:.0f}", None),
        _Column("minutes", "seconds", None, lambda seconds: short(seconds / 60), None),
    ]


def _value(statistics: Statistics, key: tuple[str, str], column: _Column) -> Value | None:
    if column.metric.startswith("bytes_") and statistics.pooled(*key):
        return None
    return statistics.value(*key, column.metric, column.nfe)


def _cell(column: _Column, value: Value | None) -> str:
    if value is None:
        return MISSING
    if value.count == 1 or column.text is not number:
        return column.text(value.mean)
    tiny = abs(value.mean) < 0.001  # else the spread gets the mean's own decimals
    return f"{number(value.mean)} ± {number(value.spread) if tiny else f'{value.spread:.3f}'}"


def _best(statistics: Statistics, keys: list[tuple[str, str]], column: _Column) -> list[int]:
    """The lines that print the best federated value of their problem, if there is more than one to choose from."""
    best: list[int] = []
    if column.distance is None:
        return best
    for problem in statistics.problems:
        found = {}
        for line, key in enumerate(keys):
            value = _value(statistics, key, column)
            if key[0] == problem and value is not None and not statistics.pooled(*key):
                found[line] = (column.distance(value.mean), column.text(value.mean))
        if len({text for _, text in found.values()}) > 1:
            winner = min(found.values())[1]
            best += [line for line, (_, text) in found.items() if text == winner]
    return best
