"""Flows of images trained on silos (FFM, section 5 and Appendix D): how good samples are after how many steps.

A cell is a run like any other, in a folder of its own: it is saved now and then, and goes on where it was stopped. What
came of it is sampled with few and with many Euler steps, all methods from the same noise, and compared with the
training and the test images of the set: by FID where Inception's weights are, else by the same distance between pixels.
Options ask for more: `memorised`, the share of copies among samples of the most steps; `adaptive`, samples of dopri5;
`precise`, some samples in 32 bits as well; and `curve`, distances while it trains.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.federation import Ranks
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _flow_images_pictures as pictures
from anabranch.recipes.studies._flow_images_config import config_of
from anabranch.recipes.studies._flow_images_curve import Curve
from anabranch.recipes.studies._flow_images_eyes import Eyes, eyes_of
from anabranch.recipes.studies._flow_images_precision import beside_precise, check_precise
from anabranch.recipes.studies._flow_images_projection import measured
from anabranch.recipes.studies._flow_images_sampling import ADAPTIVE, Drawn, make_ready, sampled, velocity_of
from anabranch.runs import Config, Notes, Row, RunFolder, device_of, train

__all__ = ["RUN", "Curve", "Eyes", "config_of", "draw", "run", "sampled", "tables", "velocity_of"]
RUN = "run"  # the run's folder, in the cell's


def run(cell: StudyCell) -> list[Row]:
    """Trains, or goes on; samples; compares. A few samples of each number of steps are kept for pictures."""
    check_precise(cell.options)
    config, folder = config_of(cell), RunFolder(cell.folder / RUN)
    eyes = cache(lambda: eyes_of(cell.options, config, device_of(config)))  # opened when there is something to see
    curve = Curve(cell, config, folder, eyes)
    rows = train(config, folder.path, Notes(looks=curve.looks))
    if not Ranks.here().first:  # it has served its silos; rank 0 samples and compares
        return []
    key: dict[str, Any] = {"problem": cell.problem, "method": cell.method, "seed": cell.seed}
    found = [*_after_steps(cell, config, eyes()), *_adaptive(cell, config, eyes())]
    found += [{"nfe": None, **row} for row in eyes().of_real_images(cell.options["sampling"]["count"])]
    named = [{**key, **row, "value": float(row["value"])} for row in [*found, *_of_the_run(config, folder, rows)]]
    return [*named, *curve.rows]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Distance against the number of steps and against minutes, and samples."""
    return pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """A table for each measure, methods down and steps across; what training cost, and would cost at full scale."""
    return pictures.tables(rows)


def _after_steps(cell: StudyCell, config: Config, eyes: Eyes) -> list[Row]:
    """Of each number of Euler steps: distances and time; of the largest also copies, of one also 32 bits."""
    steps, plan, run = cell.options["nfe"], cell.options["sampling"], cell.folder / RUN
    velocity, device = velocity_of(run, config)
    make_ready(velocity, config, plan, steps)
    found: list[Row] = []
    kept: dict[str, np.ndarray[Any, Any]] = {}
    for nfe in steps:
        drawn = sampled(velocity, config, cell.seed, plan, nfe, device)
        features = eyes.features(drawn.images)
        rows = [*eyes.compare(features), _time(drawn)]
        if cell.options.get("memorised", False) and nfe == max(steps):
            rows.append(eyes.memorised(features))
        if nfe == cell.options.get("precise", {}).get("nfe"):
            rows += beside_precise(cell, config, run, eyes, features)
        found += [{"nfe": nfe, **row} for row in rows]
        kept[f"images_{nfe}"] = drawn.images[: pictures.KEPT].numpy()
    RunFolder(cell.folder).save_arrays("samples.npz", kept)
    return found


def _adaptive(cell: StudyCell, config: Config, eyes: Eyes) -> list[Row]:
    """Distances and time of dopri5, beside the evaluations that it took."""
    if not cell.options.get("adaptive", False):
        return []
    velocity, device = velocity_of(cell.folder / RUN, config, precise=True)
    make_ready(velocity, config, cell.options["sampling"], [None])
    drawn = sampled(velocity, config, cell.seed, cell.options["sampling"], None, device)
    rows = [*eyes.compare(eyes.features(drawn.images)), _time(drawn)]
    return [{"nfe": round(drawn.evaluations), "solver": ADAPTIVE, **row} for row in rows]


def _time(drawn: Drawn) -> Row:
    return {"metric": "seconds_50k", "value": drawn.seconds * 50_000 / len(drawn.images)}


def _of_the_run(config: Config, folder: RunFolder, rows: list[Row]) -> list[Row]:
    """Silos, rounds of the flow, seconds of each phase and of a round, and megabytes of all silos, from the run's own
    records."""
    records = folder.metrics()
    last = records[-1]
    figures: dict[str, float] = {"silos": 1 if config.data.pooled else config.data.silos}
    figures["flow_rounds"] = last["round"] - (last["rounds"] - config.flow.rounds)
    figures |= {row["metric"]: row["value"] for row in rows if _kept(row)}
    for way in ("up", "down"):
        figures[f"megabytes_{way}"] = sum(row["value"] for row in rows if row["metric"] == f"bytes_{way}") / 1e6
    figures |= measured(config, records)
    return [{"nfe": None, "metric": name, "value": value} for name, value in figures.items()]


def _kept(row: Row) -> bool:
    return row["metric"] == "straightness" or str(row["metric"]).endswith("_seconds")
