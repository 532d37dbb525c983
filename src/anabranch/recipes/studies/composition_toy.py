"""DCFM, Figures 2 and 3: four Gaussians in the corners of a square, one of which no silo has seen.

A cell trains one method on one partition, draws samples of every combination, and compares them with fresh samples of
the truth. Stages that methods have in common are trained once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import CORNERS, NULL, by_combinations, corner_modes, corner_points
from anabranch.errors import unknown
from anabranch.federation import Silo
from anabranch.methods.dcfm import Composition, composition
from anabranch.metrics import hit_rate, noise_floor, wasserstein2
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _composition_stages as stages
from anabranch.recipes.studies import _composition_toy_pictures as pictures
from anabranch.recipes.studies._composition_stages import Task, Trained
from anabranch.recipes.studies._progress import Told, share
from anabranch.runs import Row, RunFolder, merged

__all__ = ["draw", "run", "share", "tables"]
NOVEL = int(CORNERS.encode(CORNERS.parse("horizontal=right, vertical=top")))
LEFT_TOP = "horizontal=left, vertical=top"
LEFT_BOTTOM = "horizontal=left, vertical=bottom"
RIGHT_BOTTOM = "horizontal=right, vertical=bottom"
PARTITIONS: dict[str, dict[str, list[str]]] = {
    "iid": {silo: [LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM] for silo in "ab"},
    "non-iid": {"a": [LEFT_TOP, LEFT_BOTTOM], "b": [LEFT_BOTTOM, RIGHT_BOTTOM]},
}
SECTIONS = ("experts", "peers", "student", "mixture")
HIT = 3.0  # a hit is within so many σ of the mode
SHOWN = 400  # points of each silo that a picture shows


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell."""
    with Told(cell) as told:
        figures = _figures(cell, Toy(**cell.options["toy"]), told)
    return [_row(cell, metric, value) for metric, value in figures.items()]


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """The data (Figure 2) and all methods' samples (Figure 3)."""
    return pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Quality and cost."""
    return pictures.tables(rows)


@dataclass(frozen=True)
class Toy:
    """The problem: modes at (±distance, ±distance) with deviation sigma, `count` points of each observed one.

    `samples` of each combination are compared with as many of the truth, drawn with `nfe` evaluations of the velocity.
    """

    partition: str
    distance: float = 1.0
    sigma: float = 0.2
    count: int = 2000
    samples: int = 500
    nfe: int = 50

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            raise unknown("partition", self.partition, PARTITIONS)

    @property
    def observed(self) -> list[int]:
        """All labels but one."""
        return [label for label in range(len(CORNERS)) if label != NOVEL]

    def silos(self, seed: int) -> list[Silo]:
        """Two silos, neither of which has anything at the right and the top."""
        label = torch.tensor(self.observed).repeat_interleave(self.count)
        data = corner_points(label, seeds.generator(seed, "toy", "data"), self.distance, self.sigma)
        generator = seeds.generator(seed, "toy", self.partition)
        parts = by_combinations(label, CORNERS, PARTITIONS[self.partition], generator)
        shuffled = {silo: index[torch.randperm(len(index), generator=generator)] for silo, index in parts.items()}
        return [Silo(silo, data.x[index], label[index], space=CORNERS) for silo, index in shuffled.items()]

    def truth(self, label: Tensor, seed: int, *names: str | int) -> Tensor:
        """Fresh points of the truth, one for each label."""
        return corner_points(label, seeds.generator(seed, "toy", "truth", *names), self.distance, self.sigma).x


def settings_of(method: str, options: Mapping[str, Any]) -> Composition:
    """The preset of that name with the recipe's sections, and `steps` in every stage that the method has.

    >>> settings_of("dcfm-a", {"steps": 900}).peers.steps                    # in each of three rounds
    300
    """
    steps, stages = options["steps"], composition(method)
    given = {name: options[name] for name in SECTIONS if name in options}
    own: dict[str, dict[str, int]] = {"experts": {"steps": steps}}
    if stages.federated.rounds:
        own["federated"] = {"rounds": steps // stages.federated.local_steps}
    if stages.peers.rounds:
        own["peers"] = {"steps": steps // stages.peers.rounds}
    if stages.student.steps:
        own["student"] = {"steps": steps}
    return composition(method, **merged(given, own))


def trained(cell: StudyCell, toy: Toy, settings: Composition, told: Told) -> Trained:
    """The method of a cell, trained; stages that a cell has trained before are read."""
    facts = {"toy": cell.options["toy"]}
    return stages.trained(Task(cell, settings, lambda: toy.silos(cell.seed), CORNERS, facts, told))


def _figures(cell: StudyCell, toy: Toy, told: Told) -> dict[str, float]:
    """Trains, samples, compares; samples are kept for the pictures."""
    flow = trained(cell, toy, settings_of(cell.method, cell.options), told)
    codes = CORNERS.combinations()
    samples = {label: _samples(flow, codes[label], toy.samples, toy.nfe, cell.seed) for label in range(len(codes))}
    nothing = torch.full((CORNERS.k,), NULL)
    free = _samples(flow, nothing, toy.samples * len(toy.observed), toy.nfe, cell.seed)
    cost = {"theta_units": flow.theta_units, "forward": flow.cost.step_forward, "backward": flow.cost.step_backward}
    silos = toy.silos(cell.seed)
    arrays = {f"sample_{label}": x.numpy() for label, x in samples.items()} | {"unconditional": free.numpy()}
    arrays |= {"distance": np.array(toy.distance), "radius": np.array(HIT * toy.sigma)}
    arrays |= {f"silo_{silo.name}": silo.data.x[:SHOWN].numpy() for silo in silos}
    arrays |= {f"label_{silo.name}": silo.data.label[:SHOWN].numpy() for silo in silos}
    RunFolder(cell.folder).save_arrays(pictures.ARRAYS, arrays)
    return {**_quality(toy, samples, free, cell.seed), **cost}


def _samples(flow: Trained, y: Tensor, count: int, nfe: int, seed: int) -> Tensor:
    generator = seeds.generator(seed, "toy", "samples", *y.tolist())
    return flow.mixture.sample(y.expand(count, -1), generator, nfe, dimension=flow.dimension).x1


def _quality(toy: Toy, samples: Mapping[int, Tensor], free: Tensor, seed: int) -> dict[str, float]:
    """Hits and distances on the novel and on the known combinations, and without any attribute."""
    modes = corner_modes(toy.distance)
    labels = {label: torch.full((toy.samples,), label) for label in samples}
    hits = {label: hit_rate(x, modes[label], HIT * toy.sigma) for label, x in samples.items()}
    w2 = {label: wasserstein2(x, toy.truth(labels[label], seed, label)) for label, x in samples.items()}
    floor = {label: noise_floor(*(toy.truth(labels[label], seed, label, n) for n in ("one", "two"))) for label in w2}
    known = torch.tensor(toy.observed)
    drawn = [
        known[torch.randint(len(known), (len(free),), generator=seeds.generator(seed, "toy", "mixture", n))]
        for n in range(3)
    ]
    mixture = [toy.truth(label, seed, "mixture", number) for number, label in enumerate(drawn)]
    mode = modes[NOVEL]
    return {
        "hit_novel": hits[NOVEL],
        "miss_novel": 1 - hits[NOVEL],
        "w2_novel": w2[NOVEL],
        "hit_known": _mean(hits, toy.observed),
        "w2_known": _mean(w2, toy.observed),
        "w2_floor": _mean(floor, list(floor)),
        "w2_unconditional": wasserstein2(free, mixture[0]),
        "w2_unconditional_floor": noise_floor(mixture[1], mixture[2]),
        "reach": float(samples[NOVEL].mean(0) @ mode / mode.square().sum()),
    }


def _mean(values: Mapping[int, float], labels: list[int]) -> float:
    return sum(values[label] for label in labels) / len(labels)


def _row(cell: StudyCell, metric: str, value: float, **more: Any) -> Row:
    key = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None}
    return {**key, "metric": metric, "value": float(value), **more}
