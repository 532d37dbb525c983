"""Ten points for the images of a hundred clients: exact W₂ beside FedWAD (FedWAD, section 4, Figures 4, 10 and 11)."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import ImageSet, load_images
from anabranch.errors import UsageError
from anabranch.federation import Federation, Silo
from anabranch.methods.fedwad import (
    Coreset,
    CoresetSettings,
    exact_coreset,
    exact_slope,
    federated_slopes,
    learn_coreset,
)
from anabranch.recipes._study import StudyCell
from anabranch.runs import Row
from anabranch.transport import half_squared_cost, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = 10
VOTERS = 5  # nearest training images whose labels decide what a point of a coreset shows
ARRAYS = "coreset.npz"
NAMES = {
    "exact": "exact W",
    "s10": "FedWAD, S = 10",
    "s100": "FedWAD, S = 100",
    "gaussian": "FedWAD, S = 10, ξ from noise",
}
COLOURS = {"exact": "#3d444d", "s10": "#0072B2", "s100": "#D55E00", "gaussian": "#009E73"}


def few_classes(label: Tensor, clients: int, classes: int, generator: torch.Generator) -> list[Tensor]:
    """Which samples each client holds: those of `classes` classes only, every class cut evenly among its holders.

    A client takes the classes that the fewest others hold so far, and among those any. So none is left without.

    >>> parts = few_classes(torch.arange(40) % 10, 5, 2, torch.Generator())
    >>> [len(part) for part in parts], sorted(torch.cat(parts).tolist()) == list(range(40))
    ([8, 8, 8, 8, 8], True)
    """
    present = torch.unique(label)
    if not 1 <= classes <= len(present) or clients * classes < len(present):
        raise UsageError(
            f"{clients} clients with {classes} classes each were asked for; the data has {len(present)}, and each must"
            " be held by someone."
        )
    held, hands = torch.zeros(len(present)), torch.zeros(clients, len(present), dtype=torch.bool)
    for hand in hands:
        chosen = (held + torch.rand(len(present), generator=generator)).argsort()[:classes]
        hand[chosen], held[chosen] = True, held[chosen] + 1
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for number, name in enumerate(present.tolist()):
        members = (label == name).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=generator)]
        holders = hands[:, number].nonzero()[:, 0].tolist()
        for client, part in zip(holders, members.tensor_split(len(holders)), strict=True):
            parts[client].append(part)
    return [torch.cat(part).sort().values for part in parts]


def run(cell: StudyCell) -> list[Row]:
    """Learns one coreset; what it costs, what it shows, and whether its slopes were the right ones."""
    options = cell.options
    images = load_images(options["images"])
    order = torch.randperm(len(images), generator=seeds.generator(cell.seed, "sample"))
    mine, others = images[order[: options["points"]]], images[order[options["points"] :]]
    parts = few_classes(mine.label, options["clients"], options["classes"], seeds.generator(cell.seed, "clients"))
    x = mine.points()
    data = {f"client-{number:03d}": x[part] for number, part in enumerate(parts, start=1)}
    settings = CoresetSettings(**options["coreset"])
    noise = torch.randn(settings.size, x.shape[1], generator=seeds.generator(cell.seed, "start"))
    start = x.mean(0) + x.std(0) * noise
    # All is public data on one machine, so a client may answer with as many atoms as the paper has.
    federation = Federation(
        [Silo(name, part, smallest_part=1, secret=seeds.derive(cell.seed, name)) for name, part in data.items()]
    )
    begun = time.perf_counter()
    if cell.method == "exact":
        found = exact_coreset(data, settings, cell.seed, start)
    else:
        found = learn_coreset(federation, settings, cell.seed, start)
    figures = {"seconds": time.perf_counter() - begun}
    figures["objective"] = fmean(exact_slope(found.points, measure(part.double())).distance for part in data.values())
    if cell.method != "exact":
        figures["gradient_gap"] = 1 - _cosine(federation, data, settings, [start.double(), found.points])
        figures["megabytes"] = fmean(found.bytes.values()) / 2**20
    votes, figures["voters_accuracy"] = _votes(found, others, load_images(options["images"], "test"), options["voters"])
    figures["modes"] = len(set(votes.tolist()))
    _keep(cell, found, votes)
    where = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None}
    return [{**where, "metric": metric, "value": float(value)} for metric, value in figures.items()]


def _cosine(federation: Federation, data: dict[str, Tensor], settings: CoresetSettings, ends: list[Tensor]) -> float:
    """The median cosine between federated and exact slopes, over clients, at the start, half way and at the end."""
    federation.open("slopes", 0)
    names, found = federation.names[:: max(1, len(data) // 20)], []
    for place in (ends[0], (ends[0] + ends[1]) / 2, ends[1]):
        federation.start_round(federation.round + 1)
        for name, slope in federated_slopes(federation, dict.fromkeys(names, place), settings).items():
            exact = exact_slope(place, measure(data[name].double())).gradient
            found.append(float(torch.cosine_similarity(slope.gradient.flatten(), exact.flatten(), dim=0)))
    return median(found)


def _votes(found: Coreset, known: ImageSet, test: ImageSet, most: int) -> tuple[Tensor, float]:
    """What each point shows, by a vote of its nearest training images, none of which a client held; and how well such
    votes do on test images.
    """
    x, test = known[slice(most)].points(), test[slice(2000)]

    def vote(points: Tensor) -> Tensor:
        near = half_squared_cost(points, x).topk(VOTERS, dim=1, largest=False).indices
        return known.label[near].mode(1).values

    return vote(found.points.float()), float((vote(test.points()) == test.label).float().mean())


def _keep(cell: StudyCell, found: Coreset, votes: Tensor) -> None:
    numpy.savez(
        cell.folder / ARRAYS,
        points=found.points.float().numpy(),
        votes=votes.numpy(),
        objective=numpy.asarray(found.objective),
    )


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Coresets as images, exact W above FedWAD as in the paper, and the objective over the rounds."""
    from matplotlib.figure import Figure

    seed = min((row["seed"] for row in rows), default=0)
    drawn = [path for path in folders if path.name == f"seed-{seed}" and (path / ARRAYS).exists()]
    kept = {(path.parts[-3], path.parts[-2]): path for path in drawn}  # PROBLEM/METHOD/seed-N
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    pictures = {}
    for problem in problems:
        shown = [(method, kept[problem, method]) for method in NAMES if (problem, method) in kept]
        figure = Figure(figsize=(10, 1.25 * len(shown)), layout="constrained")
        grid = figure.subplots(len(shown), CLASSES, squeeze=False)
        for line, (method, path) in zip(grid, shown, strict=True):
            _images(line, NAMES[method], path)
        pictures[f"Coresets, {problem}"] = out / f"coresets-{problem}.png"
        figure.savefig(pictures[f"Coresets, {problem}"], dpi=120)
    figure = Figure(figsize=(4.2 * len(problems), 3.4), layout="constrained")
    for axes, problem in zip(figure.subplots(1, len(problems), squeeze=False)[0], problems, strict=True):
        for method in NAMES:
            if (problem, method) in kept:
                _curve(axes, method, kept[problem, method])
        axes.set(title=problem, xlabel="round", ylabel="mean W to the clients asked")
        axes.legend(frameon=False, fontsize=8)
    pictures["Objective"] = out / "coreset-objective.png"
    figure.savefig(pictures["Objective"], dpi=120)
    return pictures


def _images(line: numpy.ndarray[Any, Any], name: str, path: Path) -> None:
    """A line of pictures, in the order of what they show."""
    with numpy.load(path / ARRAYS, allow_pickle=False) as arrays:
        points, votes = arrays["points"], arrays["votes"]
    side = int(points.shape[1] ** 0.5)
    for axes, place in zip(line, votes.argsort(kind="stable"), strict=False):
        axes.imshow(points[place].reshape(side, side), cmap="gray_r", vmin=0, vmax=max(1.0, points.max()))
        axes.set_title(str(votes[place]), fontsize=8, pad=2, color="#57606a")
    for axes in line:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    line[0].set_ylabel(name.replace(", ", ",\n"), rotation=0, ha="right", va="center", fontsize=9)


def _curve(axes: Axes, method: str, path: Path) -> None:
    """The objective of a run, averaged over ten rounds, since every round asks other clients."""
    with numpy.load(path / ARRAYS, allow_pickle=False) as arrays:
        objective = arrays["objective"]
    width = min(10, len(objective))
    smooth = numpy.convolve(objective, numpy.full(width, 1 / width), mode="valid")
    axes.plot(numpy.arange(len(smooth)) + width, smooth, color=COLOURS[method], label=NAMES[method], linewidth=1.5)
