"""The theory in numbers: Lemma 2, and how far local plans are from the global one as silos drift apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Points, shape
from anabranch.metrics import wasserstein2
from anabranch.runs import Config, Row
from anabranch.transport import assignment, half_squared_cost


def theory(config: Config, points: int, overlaps: Sequence[float]) -> list[Row]:
    """Rows for five degrees of overlap between two silos, from disjoint (0) to identically distributed (1).

    At overlap o each silo holds the share 1 − o/2 of its own half of the target and o/2 of the other's. Plans are exact
    on `points` Sobol points a silo; W2² between plans is taken in the product space (FFM, Theorem 1).
    """
    target = shape(config.data.target).sobol(8 * points, seeds.derive(0, "theory target"))
    x0 = shape(config.flow.source).sobol(points, seeds.derive(0, "theory source")).x
    rows = [_overlap(config, overlap, x0, _halves(config, target, points, overlap)) for overlap in overlaps]
    flat = [row for group in rows for row in group]
    flat.append(_row(config, "lemma2_ratio", max(_values(flat, "lemma2_left") / _values(flat, "lemma2_right"))))
    distance = _values(flat, "silo_distance")
    for metric in ("cost_ratio", "plan_distance"):
        ordered = _values(flat, metric)[distance.argsort()]
        flat.append(_row(config, f"{metric}_inversions", float((ordered.diff() < 0).sum())))
    return flat


def _halves(config: Config, target: Points, count: int, overlap: float) -> list[Tensor]:
    """Two silos of `count` points with the given overlap; their union is the whole target at every overlap."""
    first = torch.isin(target.label, torch.tensor(config.data.groups[0]))
    own = [target.x[first][:count], target.x[~first][:count]]
    moved = round(count * overlap / 2)
    order = torch.randperm(count, generator=seeds.generator(0, "theory", "overlap"))
    swap, stay = order[:moved], order[moved:]
    return [torch.cat([own[i][stay], own[1 - i][swap]]) for i in range(2)]


def _overlap(config: Config, overlap: float, x0: Tensor, silos: list[Tensor]) -> list[Row]:
    """Everything about one degree of overlap."""
    union = torch.cat([silo[:: len(silos)] for silo in silos])[: len(x0)]
    plan = _pairs(x0, union)
    local = torch.cat([_pairs(x0, silo) for silo in silos])
    optimum, spent = _cost(plan), _cost(local)
    values = {
        "silo_distance": sum(wasserstein2(union, silo) for silo in silos) / len(silos),
        "plan_distance": wasserstein2(plan, local) ** 2,
        "cost_ratio": spent / optimum,
        "lemma2_left": 2 * optimum,
        "lemma2_right": 2 * spent,
    }
    return [_row(config, metric, value, overlap=overlap) for metric, value in values.items()]


def _pairs(x0: Tensor, x1: Tensor) -> Tensor:
    """The optimal pairs as points (n, 2d) of the product space."""
    return torch.cat([x0, x1[assignment(half_squared_cost(x0, x1))]], dim=1)


def _cost(pairs: Tensor) -> float:
    half = pairs.shape[1] // 2
    return float((pairs[:, :half] - pairs[:, half:]).square().sum(1).mean() / 2)


def _values(rows: list[Row], metric: str) -> Tensor:
    return torch.tensor([row["value"] for row in rows if row["metric"] == metric], dtype=torch.float64)


def _row(config: Config, metric: str, value: float, **more: float) -> Row:
    key = {"problem": config.problem, "method": "theory", "seed": None, "nfe": None}
    return {**key, "metric": metric, "value": float(value), **more}


def theory_table(rows: Sequence[Row]) -> list[list[str]]:
    """The theory's rows as a table, a line for each problem and overlap; empty without such rows."""
    names = {
        "silo_distance": "mean W2 of a silo to all",
        "plan_distance": "W2^2 of the plans",
        "cost_ratio": "cost ratio of LOT",
        "lemma2_left": "Lemma 2: W2^2 to the mixture",
        "lemma2_right": "at most: mixture of W2^2",
    }
    value = {(r["problem"], r["overlap"], r["metric"]): r["value"] for r in rows if "overlap" in r}
    places = sorted({(problem, overlap) for problem, overlap, _ in value})
    lines = [[p, f"{o:g}", *(f"{value[p, o, metric]:.3f}" for metric in names)] for p, o in places]
    return [["problem", "overlap", *names.values()], *lines] if lines else []
