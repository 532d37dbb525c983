"""Flows of images trained on silos (FFM, section 5 and Appendix D): how good samples are after how many steps.

A cell is a run like any other, in a folder of its own: it is saved now and then, and goes on where it was stopped. What
came of it is sampled with few and with many Euler steps, all methods from the same noise, and compared with the
training and the test images of the set: by FID where Inception's weights are, else by the same distance between pixels.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Pixels, load_images
from anabranch.flow import Velocity, integrate
from anabranch.methods.ffm import PRESETS, FlowServer
from anabranch.metrics import FeatureStatistics, Inception, Reference, fid_report, frechet_distance, reference, to_bytes
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _flow_images_pictures as pictures
from anabranch.runs import Config, Row, RunFolder, device_of, from_dict, images_of, merged, train

RUN = "run"  # the run's folder, in the cell's
SECTIONS = ("data", "flow", "coupling", "potential", "semidiscrete", "images", "federation", "run")
SPLITS = ("train", "test")


def run(cell: StudyCell) -> list[Row]:
    """Trains, or goes on; samples; compares. A few samples of each number of steps are kept for pictures."""
    config = config_of(cell)
    rows = train(config, cell.folder / RUN)
    velocity, device = _velocity(cell.folder / RUN, config)
    eyes = Eyes(cell.options, config, device)
    key: dict[str, Any] = {"problem": cell.problem, "method": cell.method, "seed": cell.seed}
    found: list[Row] = []
    kept: dict[str, np.ndarray[Any, Any]] = {}
    for nfe in cell.options["nfe"]:
        begun = time.perf_counter()
        images = sampled(velocity, config, cell, nfe, device)
        seconds = time.perf_counter() - begun
        figures = {**eyes.compare(images), "seconds_50k": seconds * 50_000 / len(images)}
        found += [{**key, "nfe": nfe, "metric": name, "value": float(value)} for name, value in figures.items()]
        kept[f"images_{nfe}"] = images[: pictures.KEPT].numpy()
    RunFolder(cell.folder).save_arrays("samples.npz", kept)
    return [*found, *_of_the_run(rows, key)]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Distance against the number of steps, and samples."""
    return pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """A table for each measure, methods down and steps across; and what training cost."""
    return pictures.tables(rows)


def config_of(cell: StudyCell) -> Config:
    """The run of a cell: the method's preset, with the recipe's sections over it."""
    sections = {name: cell.options[name] for name in SECTIONS if name in cell.options}
    names = {"recipe": "images", "scale": cell.scale, "problem": cell.problem, "method": cell.method, "seed": cell.seed}
    quick = {"evaluation": {"points": 64, "nfe": [1], "dopri5": False}}  # what a run says of itself is not asked here
    preset = cell.options.get("preset", cell.method)
    return from_dict(merged(PRESETS[preset], sections, quick, names))


class Eyes:
    """What looks at images (n, c, h, w) of bytes: Inception beside both splits, or the pixels themselves."""

    def __init__(self, options: dict[str, Any], config: Config, device: torch.device) -> None:
        self.batch, self.device = options["inception"]["batch"], device
        self.inception = Inception.load(device=device) if options["inception"]["use"] else None
        self.references: dict[str, Reference] = {}
        for split in SPLITS:
            pixels = _real(config, split, options["real"])
            if self.inception is not None:
                count = len(pixels)
                name = config.data.target
                found = reference(name, split, self.inception, count=count, images=pixels, batch=self.batch)
            else:
                found = Reference.of(_flat(pixels))
            self.references[split] = found.to(device)

    def compare(self, images: Tensor) -> dict[str, float]:
        """Distances to both splits, by name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how many images there were stands in the recipe
            if self.inception is None:
                made = FeatureStatistics.of(_flat(images).to(self.device))
                real = {split: found.statistics for split, found in self.references.items()}
                return {f"pixels_{split}": frechet_distance(real[split], made) for split in SPLITS}
            rows = fid_report(self.inception.features(images, self.batch), self.references)
        return {row["metric"]: row["value"] for row in rows}


@torch.no_grad()
def sampled(velocity: Velocity, config: Config, cell: StudyCell, nfe: int, device: torch.device) -> Tensor:
    """Images (n, c, h, w) of bytes, on the CPU. All methods of a seed begin from the same noise."""
    options, parts = cell.options["sampling"], []
    colours, height, width = config.images.shape
    for number, start in enumerate(range(0, options["count"], options["batch"])):
        rows = min(options["batch"], options["count"] - start)
        generator = seeds.generator(cell.seed, "noise", number, device=device)
        x0 = torch.randn(rows, colours * height * width, generator=generator, device=device)
        x1 = integrate(velocity, x0, nfe, options["solver"]).x1
        parts.append(to_bytes(x1.clamp(-1, 1), (colours, height, width)).cpu())
    return torch.cat(parts)


def _velocity(folder: Path, config: Config) -> tuple[Velocity, torch.device]:
    """The averaged flow of a finished run, where it is computed."""
    checkpoint, _ = RunFolder(folder).load_checkpoint()
    assert checkpoint is not None
    device = device_of(config)
    dimension = int(checkpoint.facts["dimension"])
    return FlowServer.velocity_of(config.settings, dimension, checkpoint.state, device), device


def _real(config: Config, split: str, count: int) -> Tensor:
    """Images of a split, as the run shows them: (n, c, h, w) of bytes."""
    if split == "train":
        found: Pixels = images_of(config.data)
        rows = found.bytes.reshape(-1, *found.shape)
    else:
        whole = load_images(config.data.target, split)
        rows = images_of(config.data, whole).bytes.reshape(-1, *config.images.shape)
    return rows[:count] if count else rows


def _flat(images: Tensor) -> Tensor:
    return images.flatten(1).double() / 127.5 - 1


def _of_the_run(rows: list[Row], key: dict[str, Any]) -> list[Row]:
    """Seconds of each phase, and megabytes of all silos, from the run's own rows."""
    found = [{**key, "nfe": None, "metric": row["metric"], "value": row["value"]} for row in rows if _kept(row)]
    for way in ("up", "down"):
        total = sum(row["value"] for row in rows if row["metric"] == f"bytes_{way}") / 1e6
        found.append({**key, "nfe": None, "metric": f"megabytes_{way}", "value": float(total)})
    return found


def _kept(row: Row) -> bool:
    return row["metric"] == "straightness" or str(row["metric"]).endswith("_seconds")
