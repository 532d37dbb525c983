"""FedWAD on data whose distance is known: two Gaussians of one covariance, and digits against digits.

Every kind of problem has its function: `sizes` (Figures 2, 8 and 9), `evolution` (Figure 3), `draws` and `digits` (how
far the three values can be trusted in high dimension) and `traffic` (what crosses the wire).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.errors import AnabranchError, unknown
from anabranch.federation import Federation, Silo
from anabranch.methods.fedwad import Distance, WadSettings, distance, distances
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _toy_pictures
from anabranch.runs import Row, RunFolder
from anabranch.transport import measure

APART = 4.0  # the distance of the two means, and so of the two Gaussians
ROUNDING = 1e-9  # by which a value may be below the truth
ITERATIONS = 10**7  # of POT's simplex; its own limit is too small for thousands of points


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell."""
    kind = cell.options["kind"]
    if kind not in KINDS:
        raise unknown("kind of toy", kind, KINDS)
    return KINDS[kind](cell)


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Pictures of the rows that are there."""
    return _toy_pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Time and error at the largest size of each problem, the trust in high dimension, and the traffic."""
    return _toy_pictures.tables(rows)


def sizes(cell: StudyCell) -> list[Row]:
    """Time and error of one method at growing sizes, beside POT on the same samples in the same process."""
    options, of, rows = cell.options, cell.options["sizes"], []
    least = options.get("support", 1)  # a silo refuses more atoms than it has points
    smallest = max(of["points"][0], least)
    _race(cell, smallest, smallest, 0)  # the first call also loads libraries; its time is not kept
    for n in of["points"]:
        m = n // options["ratio"]
        if m < least or (options["exact"] and n > of["exact_most"]):
            continue
        found = [_race(cell, n, m, number) for number in range(max(1, min(of["draws"], of["drawn"] // n)))]
        rows += [_row(cell, metric, float(np.mean([f[metric] for f in found])), x=n) for metric in found[0]]
    return rows


def _race(cell: StudyCell, n: int, m: int, number: int) -> dict[str, float]:
    first, second = gaussians(cell.options["dimension"], n, m, cell.seed, number)
    begun = time.perf_counter()
    truth = exact(first, second)
    reference = time.perf_counter() - begun
    if cell.method == "emd":
        return {"seconds": reference, "value": truth, "error": abs(truth / APART - 1), "excess": 0.0, "time_ratio": 1.0}
    federation = _federation({"first": first, "second": second}, trusting=True)
    begun = time.perf_counter()
    found = distance(federation, "first", "second", settings(cell.options, n), cell.seed)
    seconds = time.perf_counter() - begun
    figures = {
        "seconds": seconds,
        "value": found.value,
        "error": abs(found.value / APART - 1),
        "excess": found.value / truth - 1,
        "time_ratio": seconds / reference,
    }
    if found.lower is not None and found.debiased is not None:
        error = abs(found.debiased / truth - 1)
        figures |= {"lower": found.lower, "debiased": found.debiased, "debiased_error": error}
    return figures


def evolution(cell: StudyCell) -> list[Row]:
    """ξ and its error, round after round. With t = ½ every round may begin where the one before ended."""
    options = cell.options
    n = options["evolution"]["points"]
    first, second = gaussians(2, n, n, cell.seed, 0)
    federation = _federation({"first": first, "second": second}, trusting=True)
    truth, once = exact(first, second), WadSettings(**{**vars(settings(options, n)), "rounds": 1})
    corner = torch.tensor([0.0, APART], dtype=torch.float64)  # off the line through the means, to see ξ travel
    noise = torch.randn(once.support, 2, generator=seeds.generator(cell.seed, "ξ"), dtype=torch.float64)
    xi = measure(corner + 0.1**0.5 * noise)
    rows, path = [], [xi.points.numpy()]
    for number in range(1, options["rounds"] + 1):
        found = distance(federation, "first", "second", once, cell.seed, start=xi)
        xi = found.measure
        path.append(xi.points.numpy())
        rows.append(_row(cell, "excess", found.value / truth - 1, x=number))
        rows.append(_row(cell, "error", abs(found.value / APART - 1), x=number))
        rows.append(_row(cell, "support", len(xi), x=number))
    rows.append(_row(cell, "best_excess", min(row["value"] for row in rows if row["metric"] == "excess")))
    arrays = {f"xi_{number}": points for number, points in enumerate(path)}
    RunFolder(cell.folder).save_arrays("path.npz", {"first": first.numpy(), "second": second.numpy(), **arrays})
    return rows


def draws(cell: StudyCell) -> list[Row]:
    """Many independent pairs of samples: is the truth always between the bounds, and how near is the best guess?"""
    n, count = (cell.options["draws"][name] for name in ("points", "draws"))
    outcomes = []
    for number in range(count):
        first, second = gaussians(cell.options["dimension"], n, n, cell.seed, number)
        federation = _federation({"first": first, "second": second})
        found = distance(federation, "first", "second", settings(cell.options, n), number)
        outcomes.append((found, exact(first, second)))
    return _trust(cell, outcomes)


def digits(cell: StudyCell) -> list[Row]:
    """All 45 pairs of MNIST's ten digits, on `draws` disjoint samples of each."""
    from anabranch.data import load_images

    images, outcomes, disorder = load_images("mnist"), [], []
    n, count = (cell.options["digits"][name] for name in ("points", "draws"))
    order = torch.randperm(len(images), generator=seeds.generator(cell.seed, "digits"))
    of = {digit: order[images.label[order] == digit] for digit in range(10)}
    if (need := n * count) > (there := min(map(len, of.values()))):
        raise AnabranchError(f"{need} images of each digit were asked for; of one there are {there}.")
    for number in range(count):
        data = {f"digit-{k}": images[index[number * n : (number + 1) * n]].points() for k, index in of.items()}
        pairs = list(combinations(data, 2))
        found = distances(_federation(data), pairs, settings(cell.options, n), cell.seed)
        outcomes += [(f, exact(data[a], data[b])) for f, (a, b) in zip(found, pairs, strict=True)]
        disorder.append(_disorder(outcomes[-len(pairs) :]))
    return _trust(cell, outcomes) + [
        _row(cell, f"disorder_{name}", max(worst[name] for worst in disorder)) for name in ("value", "debiased")
    ]


def traffic(cell: StudyCell) -> list[Row]:
    """How many numbers cross the wire for each that the raw data of a silo would have taken."""
    n, wide = cell.options["traffic"]["points"], cell.options["dimension"]
    first, second = gaussians(wide, n, n, cell.seed, 0)
    found = distance(_federation({"first": first, "second": second}), "first", "second", settings(cell.options, n))
    most = max(found.bytes.values()) / 4
    return [_row(cell, "numbers", most, x=n), _row(cell, "numbers_ratio", most / (n * wide), x=n)]


def _trust(cell: StudyCell, outcomes: Sequence[tuple[Distance, float]]) -> list[Row]:
    """How often a bound is wrong, how far each of the three values is from the truth, and the values themselves."""
    names = ("value", "debiased", "lower")
    columns = {name: np.array([getattr(found, name) for found, _ in outcomes]) for name in names}
    truth = np.array([exact for _, exact in outcomes])
    RunFolder(cell.folder).save_arrays("draws.npz", {**columns, "exact": truth})
    figures = {
        "draws": len(truth),
        "upper_wrong": int((columns["value"] < truth - ROUNDING).sum()),
        "lower_wrong": int((columns["lower"] > truth).sum()),
        **{f"{name}_error": float(np.median(np.abs(columns[name] / truth - 1))) for name in names},
    }
    return [_row(cell, metric, value) for metric, value in figures.items()]


def _disorder(outcomes: Sequence[tuple[Distance, float]]) -> dict[str, float]:
    """1 − Spearman's rank correlation with the truth: 0 where all pairs are in the right order."""
    from scipy.stats import spearmanr

    truth = [exact for _, exact in outcomes]
    names = ("value", "debiased")
    return {name: 1 - float(spearmanr([getattr(f, name) for f, _ in outcomes], truth)[0]) for name in names}


def gaussians(dimension: int, n: int, m: int, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Samples of the paper's two Gaussians: per-axis variance 0.1 in two dimensions, else 1, means `APART`."""
    generator = seeds.generator(seed, "gaussians", dimension, n, m, number)
    scale = 0.1**0.5 if dimension == 2 else 1.0
    first, second = (scale * torch.randn(count, dimension, generator=generator) for count in (n, m))
    return first, second + APART / dimension**0.5


def exact(first: Tensor, second: Tensor) -> float:
    """W2 of two samples by POT, cost matrix included."""
    import ot

    x, y = first.double().numpy(), second.double().numpy()
    cost = ot.emd2(ot.unif(len(x)), ot.unif(len(y)), ot.dist(x, y), numItermax=ITERATIONS)
    return float(np.sqrt(cost))


def settings(options: Mapping[str, Any], n: int) -> WadSettings:
    """The method of a cell; exact interpolation begins with as many atoms as there are points."""
    chosen = {name: options[name] for name in ("rounds", "exact", "t", "bounds", "precision") if name in options}
    return WadSettings(support=n if options["exact"] else options["support"], **chosen)


def _federation(data: Mapping[str, Tensor], trusting: bool = False) -> Federation:
    """Silos of the data; trusting ones answer with up to as many atoms as they have points."""
    part = 1 if trusting else 4
    return Federation([Silo(name, x, secret=k, smallest_part=part) for k, (name, x) in enumerate(data.items())])


def _row(cell: StudyCell, metric: str, value: float, **more: float) -> Row:
    key = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None}
    return {**key, "metric": metric, "value": float(value), **more}


KINDS: dict[str, Callable[[StudyCell], list[Row]]] = {
    "sizes": sizes,
    "evolution": evolution,
    "draws": draws,
    "digits": digits,
    "traffic": traffic,
}
