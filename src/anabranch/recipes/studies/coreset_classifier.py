"""One nearest-neighbour classifier on the coresets of all clients (FedWAD, section 4, Figures 5 and 12).

Its rivals, FedRep and FedPer, see the same features and keep a head of its own for each client, who holds two classes
only: in truth they choose among the two, while the classifier on coresets, which is one for all, tells all ten apart.
So there are two figures: the "accuracy" of every method as it is, and "own_accuracy", where a client looks, among the
coresets of all, only at points that bear the labels it holds itself. For the rivals both are one.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anabranch import seeds
from anabranch.data import load_images
from anabranch.federation import Federation, Silo
from anabranch.methods.fedwad import Coreset, CoresetSettings, label_coresets, nearest_neighbour, silo_coresets
from anabranch.methods.personal import PersonalSettings, train_personal
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies.coreset import few_classes
from anabranch.runs import Row

CLASSES_EACH = 2
RIVALS = {"fedrep": ("FedRep", "#D55E00"), "fedper": ("FedPer", "#009E73")}
INK = "#1f2328"
BLUES = ("#9ecae1", "#4292c6", "#08519c", "#08306b")  # the more points a coreset has, the darker


def run(cell: StudyCell) -> list[Row]:
    """The mean accuracy over clients, each on test images of its two classes, for every number of clients."""
    train, test = _features(cell.options, cell.seed)
    rows: list[Row] = []
    for clients in cell.options["clients"]:
        silos = _silos(train, test, clients, cell.seed)
        figures = (_rival if cell.method in RIVALS else _coresets)(silos, cell)
        where = {"problem": cell.problem, "method": cell.method, "seed": cell.seed, "nfe": None, "x": clients}
        rows += [{**where, "metric": metric, "value": value} for metric, value in figures.items()]
    return rows


def _rival(silos: list[Silo], cell: StudyCell) -> dict[str, float]:
    """The accuracy after the last round, and the traffic of a client."""
    options = {**cell.options["personal"], "hidden": tuple(cell.options["personal"]["hidden"])}
    found = train_personal(silos, PersonalSettings(cell.method, **options), cell.seed)
    megabytes = found.ledger.bytes() / len(silos) / 2**20
    return {"accuracy": found.final, "own_accuracy": found.final, "megabytes": megabytes}


def _coresets(silos: list[Silo], cell: StudyCell) -> dict[str, float]:
    """The same of the classifier on all clients' coresets."""
    federation = Federation(silos)
    coresets = silo_coresets(federation, CoresetSettings(**cell.options["coreset"]), cell.seed)
    labels = label_coresets(federation, coresets)
    points, known = torch.cat([coresets[name].points for name in labels]), torch.cat(list(labels.values()))
    right: list[float] = []
    own: list[float] = []
    for silo in silos:
        if silo.held_out is None or silo.held_out_label is None:
            continue
        held = torch.isin(known, silo.data.label)
        some = {"own": Coreset(points[held], torch.ones(len(held)), ())}
        for guess, found in (
            (nearest_neighbour(coresets, labels, silo.held_out), right),
            (nearest_neighbour(some, {"own": known[held]}, silo.held_out), own),
        ):
            found.append(float((guess == silo.held_out_label).float().mean()))
    megabytes = federation.ledger.bytes() / len(silos) / 2**20
    return {"accuracy": fmean(right), "own_accuracy": fmean(own), "megabytes": megabytes}


def _silos(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], clients: int, seed: int) -> list[Silo]:
    """Clients with two classes each, and test images of the same two: one seed deals the same classes twice."""
    parts, held = (
        few_classes(label, clients, CLASSES_EACH, seeds.generator(seed, "clients", clients))
        for _, label in (train, test)
    )
    return [
        Silo(
            f"client-{number:03d}",
            train[0][mine],
            train[1][mine],
            test[0][theirs],
            secret=seeds.derive(seed, "secret", number),
            held_out_label=test[1][theirs],
        )
        for number, (mine, theirs) in enumerate(zip(parts, held, strict=True), start=1)
    ]


def _features(options: dict[str, Any], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Codes and labels of half of the training images and of the test images; the other half trains the encoder."""
    images, test = load_images(options["images"]), load_images(options["images"], "test")
    order = torch.randperm(len(images), generator=seeds.generator(seed, "halves"))
    half = len(images) // 2
    encoder = _encoder(images[order[:half]].points(), options, seed)
    rest = images[order[half : half + options["points"]]]
    with torch.no_grad():
        codes = [encoder(part.points()) for part in (rest, test)]
    mean, scale = codes[0].mean(0), codes[0].std()  # one scale for all: distances between codes keep their meaning
    return [((code - mean) / scale, part.label) for code, part in zip(codes, (rest, test), strict=True)]


def _encoder(x: Tensor, options: dict[str, Any], seed: int) -> nn.Sequential:
    """The first half of an autoencoder, trained to give its images back."""
    width, code = options["width"], options["code"]
    start = seeds.generator(seed, "autoencoder")
    encoder = nn.Sequential(_linear(x.shape[1], width, start), nn.ReLU(), _linear(width, code, start))
    decoder = nn.Sequential(_linear(code, width, start), nn.ReLU(), _linear(width, x.shape[1], start))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    generator = seeds.generator(seed, "autoencoder", "order")
    for _ in range(options["autoencoder_epochs"]):
        for rows in torch.split(x[torch.randperm(len(x), generator=generator)], 128):
            loss = functional.binary_cross_entropy_with_logits(decoder(encoder(rows)), rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return encoder.requires_grad_(False)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer that starts as torch's own do, uniformly within ±1/√inputs, but not from the global random state."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    nn.init.uniform_(layer.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return layer


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """Accuracy over the number of clients, a line for each size of coresets and for each rival."""
    from matplotlib.figure import Figure

    problems, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("problem", "method"))
    shades = iter(BLUES)
    looks = {
        name: RIVALS[name] if name in RIVALS else (f"{name.replace('-', 's of ')}, 1-NN", next(shades, INK))
        for name in methods
    }
    figure = Figure(figsize=(5 * len(problems), 4.2), layout="constrained")
    for axes, problem in zip(figure.subplots(1, len(problems), squeeze=False)[0], problems, strict=True):
        for method, (name, colour) in looks.items():
            for metric, line in (("accuracy", "-"), ("own_accuracy", ":")):
                if metric == "accuracy" or method not in RIVALS:
                    means = _means(rows, problem, method, metric)
                    label = name if metric == "accuracy" else f"{name}, own classes"
                    axes.plot(list(means), list(means.values()), line, marker="o", color=colour, label=label)
        ticks = sorted({row["x"] for row in rows})
        axes.set(title=problem, xlabel="clients", ylabel="accuracy on test images, mean over clients", xscale="log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    picture = out / "coreset-classifier.png"
    figure.savefig(picture, dpi=120)
    return {"Accuracy over the number of clients": picture}


def _means(rows: list[Row], problem: str, method: str, metric: str) -> dict[int, float]:
    """The means over seeds by the number of clients."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if (row["problem"], row["method"], row["metric"]) == (problem, method, metric):
            found.setdefault(row["x"], []).append(row["value"])
    return {clients: fmean(found[clients]) for clients in sorted(found)}
