"""USPS as the libsvm collection hands it out: text, one image a line."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy

from anabranch.data._layouts import Pixels, wanted
from anabranch.errors import DataError

_SIDE = 16
_LONGEST = 100_000  # characters in a line, lines in a file; the set has 5 000 and 7 291


def usps_files(split: str) -> list[tuple[str, ...]]:
    """The names of a split's file."""
    stem = "usps" if split == "train" else "usps.t"
    return [(stem, f"{stem}.bz2")]


def read_usps(folder: Path, split: str) -> Pixels:
    """Lines of a label 1 … 10, which means the digits 0 … 9, and place:value with values in [−1, 1], 0 if left out."""
    (path,) = wanted(folder, usps_files(split))
    labels: list[int] = []
    rows: list[list[float]] = []
    try:
        with bz2.open(path, "rt") if path.suffix == ".bz2" else path.open() as file:
            while line := file.readline(_LONGEST):
                if not line.strip():
                    continue
                if len(labels) == _LONGEST:
                    raise ValueError("there are too many lines")
                label, row = _parse(line)
                labels.append(label)
                rows.append(row)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"Line {len(labels) + 1} of '{path}' is not as in libsvm's USPS: {error}.") from error
    images = numpy.array(rows, dtype=numpy.float64).reshape(-1, 1, _SIDE, _SIDE)
    grey = numpy.rint((images + 1) * (255 / 2)).astype(numpy.uint8)
    return Pixels(grey.shape, (grey,), numpy.array(labels, dtype=numpy.int64))


def _parse(line: str) -> tuple[int, list[float]]:
    label, *fields = line.split()
    if label not in {str(number) for number in range(1, 11)}:
        raise ValueError(f"its label is {label}, not a whole number from 1 to 10")
    row = [0.0] * _SIDE**2
    for field in fields:
        place, _, value = field.partition(":")
        number = float(value)
        if not 1 <= int(place) <= _SIDE**2 or not -1 <= number <= 1:
            raise ValueError(f"'{field}' is not place:value with a place from 1 to {_SIDE**2} and a value in [−1, 1]")
        row[int(place) - 1] = number
    return int(label) - 1, row
