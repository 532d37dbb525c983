"""One cell of the study `flow_images`: a run, samples of it, and what they are beside real images."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from anabranch.federation import Federation, Ranks
from anabranch.methods.ffm import Progress
from anabranch.recipes._share import share_of
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies.flow_images._config import config_of
from anabranch.recipes.studies.flow_images._curve import Curve
from anabranch.recipes.studies.flow_images._eyes import Eyes, check_eyes, eyes_of
from anabranch.recipes.studies.flow_images._pictures import KEPT
from anabranch.recipes.studies.flow_images._precision import beside_precise, check_precise
from anabranch.recipes.studies.flow_images._projection import measured
from anabranch.recipes.studies.flow_images._sampling import ADAPTIVE, Drawn, make_ready, sampled, velocity_of
from anabranch.runs import Config, Notes, Row, RunFolder, device_of, train

RUN = "run"  # the run's folder, in the cell's


def run(cell: StudyCell) -> list[Row]:
    """Trains, or goes on; samples; compares. A few samples of each number of steps are kept for pictures."""
    check_precise(cell.options)
    check_eyes(cell.options)
    config, folder = config_of(cell), RunFolder(cell.folder / RUN)
    eyes = cache(lambda: eyes_of(cell.options, config, device_of(config)))  # opened when there is something to see
    curve = Curve(cell, config, folder, eyes)
    rows = train(config, folder.path, _notes(cell, curve))
    if not Ranks.here().first:  # it has served its silos; rank 0 samples and compares
        return []
    key: dict[str, Any] = {"problem": cell.problem, "method": cell.method, "seed": cell.seed}
    found = [*_after_steps(cell, config, eyes()), *_adaptive(cell, config, eyes())]
    curve.end(found)
    found += [{"nfe": None, **row} for row in eyes().of_real_images(cell.options["sampling"]["count"])]
    named = [{**key, **row, "value": float(row["value"])} for row in [*found, *_of_the_run(config, folder, rows)]]
    return [*named, *curve.rows]


def _notes(cell: StudyCell, curve: Curve) -> Notes:
    """What a run says, also of silos whose answers were no use, becomes a warning: each sentence once."""
    whose = f"{cell.problem} {cell.method} seed {cell.seed}"

    def say(sentence: str) -> None:
        warnings.warn(f"{whose}: {sentence}", stacklevel=2)

    def told(progress: Progress, federation: Federation) -> None:
        for name, why in progress.failures.items():
            say(f"silo '{name}' did not count in a round. {why}")

    return Notes(told, say, looks=curve.looks)


def share(cell: StudyCell) -> float:
    """How much of a cell is done that another process is busy with; what follows training counts as a tenth."""
    return 0.9 * share_of(config_of(cell), cell.folder / RUN)


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
        kept[f"images_{nfe}"] = drawn.images[:KEPT].numpy()
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
