"""FedWAD, Figures 6, 13 and 14: distances between labelled image sets that never meet, beside exact OTDD.

Every kind of problem has its function: `matrix` (all pairs of sets), `rounds`, `supports` and `sizes` (one pair at a
time, against the rounds, the atoms and the samples). All sets are grey images of 28 × 28 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from anabranch import seeds
from anabranch.data import ImageSet, Points, load_images
from anabranch.errors import AnabranchError, unknown
from anabranch.federation import Federation, Silo
from anabranch.methods.fedwad import WadSettings, distances
from anabranch.metrics import otdd
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _otdd_pictures
from anabranch.runs import Row

SIDE = 28
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are to the eye
EXACT = "otdd"
FEW = 20  # examples, for a first call whose time is not taken

Pair = tuple[str, str]
Sets = dict[str, Points]


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell."""
    kind = cell.options["kind"]
    if kind not in KINDS:
        raise unknown("kind of problem", kind, KINDS)
    return KINDS[kind](cell)


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Pictures of the rows that are there; no arrays are needed."""
    return _otdd_pictures.draw(rows, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """The distances of all pairs, and how well their order is kept."""
    return _otdd_pictures.tables(rows)


def matrix(cell: StudyCell) -> list[Row]:
    """Figure 6: all pairs of sets, exactly and by every variant of FedWAD on the same samples."""
    options = cell.options
    sets = _sets(cell, options["sets"], options["points"], options["optional"])
    pairs = list(combinations(sets, 2))
    truth = [_exact(sets, pair)[0] for pair in pairs]
    rows = [_row(cell, EXACT, "distance", value, pair=_name(pair)) for value, pair in zip(truth, pairs, strict=True)]
    for name, variant in options["variants"].items():
        support = max(1, round(variant["share"] * options["points"]))
        found, seconds = _federated(sets, pairs, support, variant["rounds"], cell.seed)
        rows += [
            _row(cell, name, "distance", value, pair=_name(pair)) for value, pair in zip(found, pairs, strict=True)
        ]
        rows += [_row(cell, name, metric, value) for metric, value in _order(found, truth).items()]
        rows.append(_row(cell, name, "excess", float(np.mean(np.divide(found, truth) - 1))))
        rows.append(_row(cell, name, "seconds", seconds / len(pairs)))
    return rows


def rounds(cell: StudyCell) -> list[Row]:
    """Figure 13, left: one pair against the number of rounds."""
    return _along(
        cell, [(count, cell.options["support"], cell.options["points"]) for count in cell.options["rounds"]], 0
    )


def supports(cell: StudyCell) -> list[Row]:
    """Figure 13, right: one pair against the atoms of the measure between."""
    few = [size for size in cell.options["supports"] if size <= cell.options["points"]]
    return _along(cell, [(cell.options["rounds"], size, cell.options["points"]) for size in few], 1)


def sizes(cell: StudyCell) -> list[Row]:
    """Figure 14: pairs against the number of samples, for several numbers of atoms."""
    options = cell.options
    both = [(points, atoms) for points in options["sizes"] for atoms in options["atoms"] if atoms <= points]
    return _along(cell, [(options["rounds"], atoms, points) for points, atoms in both], 2)


KINDS: dict[str, Callable[[StudyCell], list[Row]]] = {
    "matrix": matrix,
    "rounds": rounds,
    "supports": supports,
    "sizes": sizes,
}


def _along(cell: StudyCell, settings: Sequence[tuple[int, int, int]], axis: int) -> list[Row]:
    """Value and time for each (rounds, support, points), with what varies as x; the exact ones beside them."""
    rows: list[Row] = []
    for first, second in cell.options["pairs"]:
        pair, exact, drawn = (first, second), {}, set()
        few = _sets(cell, pair, FEW)
        _exact(few, pair), _federated(few, [pair], 2, 1, cell.seed)  # libraries are loaded before clocks start
        for setting in settings:
            count, support, points = setting
            x, name = setting[axis], f"S = {support}" if axis == 2 else "fedwad"
            sets = _sets(cell, pair, points)
            if points not in exact:
                exact[points] = _exact(sets, pair)
            found, seconds = _federated(sets, [pair], support, count, cell.seed)
            figures = {"distance": found[0], "seconds": seconds, "excess": found[0] / exact[points][0] - 1}
            rows += [_row(cell, name, metric, value, x=x, pair=_name(pair)) for metric, value in figures.items()]
            if x not in drawn:
                drawn.add(x)
                figures = dict(zip(("distance", "seconds"), exact[points], strict=True))
                rows += [_row(cell, EXACT, metric, value, x=x, pair=_name(pair)) for metric, value in figures.items()]
    return rows


def _sets(cell: StudyCell, names: Sequence[str], points: int, optional: Sequence[str] = ()) -> Sets:
    """A sample of each set, at most so many points; the optional ones where they are at hand."""
    found = {}
    for name in (*names, *optional):
        try:
            images = load_images(name, "train", cell.options.get("folders", {}).get(name))
        except AnabranchError:
            if name in optional:
                continue
            raise
        order = torch.randperm(len(images), generator=seeds.generator(cell.seed, "sample", name))
        chosen = images[order[:points].sort().values]
        found[name] = Points(grey(chosen), chosen.label)
    return found


def grey(images: ImageSet) -> Tensor:
    """The images as rows of 28 · 28 grey values in [0, 1], resized where they have another size."""
    x = images.images.float() / 255
    if x.shape[1] == 3:
        x = (x * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
    if x.shape[2:] != (SIDE, SIDE):
        x = functional.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True)
    return x.flatten(1)


def _exact(sets: Sets, pair: Pair) -> tuple[float, float]:
    """OTDD with both sets in one place, and the seconds it took."""
    first, second = (sets[name] for name in pair)
    began = perf_counter()
    return otdd(first.x, first.label, second.x, second.label), perf_counter() - began


def _federated(sets: Sets, pairs: Sequence[Pair], support: int, count: int, seed: int) -> tuple[list[float], float]:
    """The same by FedWAD, and the seconds for all pairs. The sets are public: S may come up to their size."""
    began = perf_counter()
    silos = [
        Silo(name, part.x, part.label, smallest_part=1, secret=seeds.derive(seed, "secret", name))
        for name, part in sets.items()
    ]
    least = min(len(part.x) for part in sets.values())
    settings = WadSettings(support=min(support, least), rounds=count, view="classes", bounds=False)
    found = distances(Federation(silos), list(pairs), settings, seed)
    return [one.value for one in found], perf_counter() - began


def _order(found: Sequence[float], truth: Sequence[float]) -> dict[str, float]:
    """How far two lists of distances are in one order; `disorder` is 0 where they are entirely."""
    from scipy.stats import kendalltau, spearmanr

    spearman, kendall = float(spearmanr(found, truth).statistic), float(kendalltau(found, truth).statistic)
    return {"spearman": spearman, "kendall": kendall, "disorder": 1 - spearman}


def _name(pair: Pair) -> str:
    return f"{pair[0]} | {pair[1]}"


def _row(cell: StudyCell, method: str, metric: str, value: float, **more: Any) -> Row:
    names = {"problem": cell.problem, "method": method, "seed": cell.seed, "metric": metric}
    return {**names, "value": float(value), "nfe": None, **more}
