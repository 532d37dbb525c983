"""Combinations of attributes that no silo has seen, on images (DCFM, section 6.1, Table 1, Figures 5 and 6).

A cell trains one method on silos that hold some combinations, samples all of them, and compares samples of known and of
novel combinations with real test images of the same ones. The method "real" is no method: training images themselves,
so that every figure has its floor. Cells on one machine share what they can: Stage I without and with the local
penalty, the experts of DCFM-A, the judge of attributes, the features of real images. A finished cell needs none of it.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anabranch.data.attributes import NULL
from anabranch.methods.experts import Mixture
from anabranch.metrics import to_bytes
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _composition_images_pictures as pictures
from anabranch.recipes.studies._composition_images_data import SIDES, Scene, chosen_device, images, scene, sides
from anabranch.recipes.studies._composition_images_metrics import Eyes, Figures, eyes, judge_accuracy
from anabranch.recipes.studies._composition_images_sampling import Way, every_combination, sampled
from anabranch.recipes.studies._composition_images_training import looks_at, trained
from anabranch.recipes.studies._composition_stages import Trained
from anabranch.recipes.studies._progress import Told, share
from anabranch.runs import Row, RunFolder

__all__ = ["draw", "looks_at", "run", "share", "tables"]
REAL = "real"


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell; one image of every combination is kept for the picture."""
    device = chosen_device(cell.options["device"])
    found = scene(cell)
    with Told(cell) as told:
        look = eyes(cell, found, device)
        figures = _real(cell, found, look) if cell.method == REAL else _method(cell, found, look, device, told)
    figures["judge_accuracy"] = judge_accuracy(look.judge, cell.options)
    figures["judge_error"] = 1 - figures["judge_accuracy"]
    key = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None}
    return [{**key, "metric": metric, "value": float(value)} for metric, value in figures.items()]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Grids of all combinations, and precision against recall."""
    return pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Table 1 with the paper's figures, the judge's view, cost, and the settings that all of it follows from."""
    return pictures.tables(rows)


def _method(cell: StudyCell, found: Scene, look: Eyes, device: torch.device, told: Told) -> Figures:
    """Trains, samples, compares."""
    made = trained(cell, found, device, told)
    begun = time.perf_counter()
    figures: Figures = {}
    for side in SIDES:
        way = Way.of(cell.options[side])
        y = found.real[side].codes  # as often as the real images show it
        x = sampled(made.mixture, y, cell, found, device, side, way)
        figures |= look.compare(look.features(x), side, side) | look.obeyed(x, y, found.space.names, side)
        figures |= way.numbers(side, found.space.names)
    figures |= _other_ways(made.mixture, cell, found, look, device)
    y = torch.full((cell.options["unconditional"], found.space.k), NULL)
    x = sampled(made.mixture, y, cell, found, device, "unconditional", Way("joint"))
    figures |= look.compare(look.features(x), "known", "unconditional")
    _keep_grid(cell, found, every_combination(made.mixture, cell, found, device))
    return {**figures, "sampling_seconds": time.perf_counter() - begun, **_cost(made), **_settings(made, cell)}


def _real(cell: StudyCell, found: Scene, look: Eyes) -> Figures:
    """Training images in place of samples."""
    figures: Figures = {}
    for side, mask in sides(found.observed).items():
        part = images(cell.options, "train", mask, cell.options["samples"], cell.seed)
        figures |= look.compare(look.features(part.x), side, side)
        figures |= look.obeyed(part.x, part.codes, found.space.names, side)
    every = images(cell.options, "train", None, cell.options["judge"]["images"], cell.seed)
    first = [int((every.label == label).nonzero()[0]) for label in range(len(found.space))]
    _keep_grid(cell, found, every.x[first])
    return figures


def _other_ways(mixture: Mixture, cell: StudyCell, found: Scene, look: Eyes, device: torch.device) -> Figures:
    """Novel combinations in other ways, by their names, which are the same for all methods; fewer samples of each."""
    options, figures = cell.options["others"], Figures()
    y = found.real["novel"].codes[: options["samples"]]
    for name, section in options["ways"].items():
        same = {"weights": cell.options["novel"].get("weights")} if section.get("weights") == "novel" else {}
        x = sampled(mixture, y, cell, found, device, "novel", Way.of({**section, **same}))
        figures |= look.obeyed(x, y, found.space.names, f"novel_{name}")
        figures |= look.compare(look.features(x), "novel", f"novel_{name}")
    return figures


def _cost(made: Trained) -> Figures:
    """Bytes of a silo in MB and in units of one network θ, passes of a batch in all, seconds of training."""
    cost = made.cost
    return {
        "megabytes_up": cost.up / 1e6,
        "megabytes_down": cost.down / 1e6,
        "theta_units": made.theta_units,
        "passes_forward": cost.forward,
        "passes_backward": cost.backward,
        "seconds": cost.seconds,
    }


def _settings(made: Trained, cell: StudyCell) -> Figures:
    """What the method was trained with, so that a reader of the report can compare."""
    settings = made.settings
    expert, student = settings.experts, settings.student
    found = {
        "parameters": made.parameters,
        "channels": expert.channels if expert.network.endswith("unet") else expert.hidden,
        "batch": expert.batch,
        "rate": expert.rate,
        "average": expert.average,
        "penalty": expert.penalty,
        "steps_experts": 0 if settings.federated.rounds else expert.steps,
        "steps_federated": settings.federated.rounds * settings.federated.local_steps,
        "steps_peers": settings.peers.rounds * settings.peers.steps,
        "steps_student": student.steps,
        "evaluations": cell.options["sampling"]["nfe"],
        "share_full": expert.full,
        "share_marginal": expert.marginal,
        "share_unconditional": expert.unconditional,
    }
    if settings.federated.rounds:
        found["local_steps"] = settings.federated.local_steps
    if settings.peers.rounds:
        names = ("rounds", "rate", "penalty", "early", "late", "held", "least")
        found |= {f"{name}_peers": getattr(settings.peers, name) for name in names}
    if expert.penalty:
        found |= {"late": expert.late, "compared": expert.compared}
    if student.steps:
        found |= {"rate_student": student.rate, "batch_student": student.batch, "penalty_student": student.penalty}
        found["additive_since"] = student.since if student.additive else math.nan
        found["teachers_together"] = float(student.paths == "together")
    elif not settings.federated.rounds:
        found["experts_at_once"] = settings.mixture.top or cell.options["silos"]
        if settings.mixture.router == "energy":
            found["temperature"] = settings.mixture.temperature
    return {name: float(value) for name, value in found.items() if not math.isnan(value)}


def _keep_grid(cell: StudyCell, found: Scene, x: Tensor) -> None:
    """One image of each combination, which ones are novel, and the space: all that a picture needs, in kilobytes."""
    RunFolder(cell.folder).save_arrays(
        "grid.npz",
        {
            "images": to_bytes(x, found.shape).numpy(),
            "novel": (~found.observed).numpy(),
            "space": np.array(found.space.to_json()),
        },
    )
