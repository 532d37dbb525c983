"""Drives a federated distance: the same folder as a training run, with ξ where samples would be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from anabranch.errors import UsageError
from anabranch.federation import Federation
from anabranch.methods.fedwad import Distance, distances
from anabranch.methods.ffm import Progress
from anabranch.runs._config import Config
from anabranch.runs._evaluate import Row
from anabranch.runs._folder import RunFolder

Say = Callable[[Progress, Federation], None]


def compare(config: Config, folder: RunFolder, federation: Federation, run: str, progress: Say) -> list[Row]:
    """Distances between the silos that the config names, or between all; a run that was cut off starts over.

    A round takes a second, so nothing is worth a checkpoint. Rows carry both names under "pair".
    """
    settings = config.distance
    started = time.monotonic()
    folder.truncate_metrics(0)
    with folder.log() as log:

        def note(number: int, rounds: int) -> None:
            ledger = federation.ledger
            spent: dict[str, Any] = {f"bytes_{way}": ledger.bytes(way) for way in ("up", "down")}
            spent["seconds"] = round(time.monotonic() - started, 3)
            log.write(json.dumps({"round": number, "rounds": rounds, "phase": "distance", **spent}) + "\n")
            log.flush()
            progress(Progress(number, rounds, "distance", {}), federation)

        names = tuple(federation.names)
        if len(settings.between or names) < 2 or len(settings.between) > 2:
            raise UsageError(
                f"distance.between names {len(settings.between)} silos of {len(names)}; a distance has two."
            )
        pairs = [settings.between] if settings.between else list(combinations(names, 2))
        found = distances(federation, [(a, b) for a, b in pairs], settings, config.seed, watch=note, run=run)
    rows = [row for pair, one in zip(pairs, found, strict=True) for row in _rows(config, pair, one)]
    arrays: dict[str, Any] = {}
    for (a, b), one in zip(pairs, found, strict=True):
        arrays[f"{a}|{b}/points"], arrays[f"{a}|{b}/weight"] = one.measure.points.numpy(), one.measure.weight.numpy()
    folder.save_arrays("samples.npz", {name: np.asarray(values) for name, values in arrays.items()})
    seconds = time.monotonic() - started
    folder.write_json("results.json", {"seconds": seconds, "rounds": settings.rounds, "rows": rows})
    return rows


def _rows(config: Config, pair: tuple[str, ...], found: Distance) -> list[Row]:
    figures = {
        "distance": found.value,
        "debiased": found.debiased,
        "lower_bound": found.lower,
        "rounds": float(len(found.rounds)),
        "converged": float(found.converged),
        "bytes": float(sum(found.bytes.values())),
    }
    key = {"problem": config.problem, "method": config.method, "seed": config.seed, "nfe": None, "pair": list(pair)}
    return [{**key, "metric": metric, "value": value} for metric, value in figures.items() if value is not None]
