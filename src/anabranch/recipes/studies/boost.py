"""FedWAD, Tables 1-5 and Figure 15: clients that are grouped by their distances learn better together.

A cell deals an image set to clients with two classes each, computes the distances between all of them once, groups the
clients by spectral clustering, and trains classifiers: one federation of all clients ("vanilla"), and one for each
group. Groups that come out the same are trained once. Accuracies are means over clients after the last round, on images
of the test split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import DataError
from anabranch.federation import Federation, Silo
from anabranch.methods.fedwad import WadSettings, adjusted_rand_index, cluster, distances
from anabranch.methods.personal import PersonalResult, PersonalSettings, train_clustered, train_personal
from anabranch.recipes._study import Lines, StudyCell
from anabranch.recipes.studies import _boost_pictures
from anabranch.recipes.studies.clients import Client, clients_of, compared, learning
from anabranch.runs import Row, RunFolder

RECOVERED = 0.95  # adjusted Rand index from which the planted groups count as found


def run(cell: StudyCell) -> list[Row]:
    """All figures of one cell: how well groups are found, and each learner's accuracy with and without them."""
    options = cell.options
    data, folder = options["data"], options.get("folder")
    clients = clients_of(
        data, options["clients"], options["structured"], options["samples"], options["held_out"], cell.seed, folder
    )
    rows = _Rows(cell)
    found = {}
    for support in options["supports"]:
        matrix = _matrix(cell, clients, support, rows)
        for graph in options["graphs"]:
            name = _boost_pictures.variant(graph, support)
            labels = _clusters(matrix, options["clusters"], graph, cell.seed)
            found[name] = labels
            if options["structured"]:
                index = adjusted_rand_index(labels, [client.classes for client in clients])
                rows.add(name, "rand_index", index)
                rows.add(name, "missed", float(index < RECOVERED))
    silos = learning(clients, data, cell.seed)
    for learner in options["learners"]:
        _learn(silos, found, PersonalSettings(learner, **options["personal"]), cell.seed, rows)
    return rows.rows


class _Rows:
    """Rows of one cell."""

    def __init__(self, cell: StudyCell) -> None:
        self.cell = cell
        self.rows: list[Row] = []

    def add(self, method: str, metric: str, value: float) -> None:
        names = {"problem": self.cell.problem, "method": method, "seed": self.cell.seed}
        self.rows.append({**names, "metric": metric, "value": float(value), "nfe": None})


def _learn(silos: Sequence[Silo], found: dict[str, Tensor], settings: PersonalSettings, seed: int, rows: _Rows) -> None:
    """One learner: all clients in one federation, then a federation for each group, however the groups were found."""
    alone = train_personal(silos, settings, seed)
    _report(rows, settings.method, alone)
    trained: dict[tuple[int, ...], PersonalResult] = {}
    for name, labels in found.items():
        groups = tuple(labels.tolist())
        if groups not in trained:
            member = {silo.name: number for silo, number in zip(silos, groups, strict=True)}
            trained[groups] = train_clustered(silos, member, settings, seed)
        method = f"{settings.method} {name}"
        _report(rows, method, trained[groups])
        rows.add(method, "lost", alone.final - trained[groups].final)


def _report(rows: _Rows, method: str, result: PersonalResult) -> None:
    rows.add(method, "accuracy", result.final)
    rows.add(method, "error", 1 - result.final)
    rows.add(method, "accuracy_of_rounds", result.reported)


def _clusters(matrix: Tensor, clusters: int, graph: str | int, seed: int) -> Tensor:
    """The group of each client. A graph in too many parts to be cut gets more neighbours, until it holds together."""
    for more in range(len(matrix)):
        try:
            return cluster(matrix, clusters, graph if isinstance(graph, str) else graph + more, seed)
        except DataError:
            if isinstance(graph, str) or graph + more + 1 >= len(matrix):
                raise
    raise AssertionError


def _matrix(cell: StudyCell, clients: Sequence[Client], support: int, rows: _Rows) -> Tensor:
    """The federated distances between all clients, from the cell's folder where they have been computed before."""
    options = cell.options
    kept = ("data", "structured", "clients", "samples", "rounds")
    stamp = json.dumps([cell.seed, support, *(options[name] for name in kept)])
    folder, file = RunFolder(cell.folder), f"distances-{support}.npz"
    if (cell.folder / file).exists():
        saved = folder.load_arrays(file)
        if str(saved["stamp"]) == stamp:
            _cost(rows, support, float(saved["seconds"]), float(saved["bytes"]))
            return torch.from_numpy(saved["matrix"])
    began = perf_counter()
    federation = Federation(compared(clients, cell.seed))
    places = torch.triu_indices(len(clients), len(clients), 1)
    pairs = [(clients[i].name, clients[j].name) for i, j in places.T.tolist()]
    settings = WadSettings(support=support, rounds=options["rounds"], view="classes", bounds=False)
    matrix = torch.zeros(len(clients), len(clients), dtype=torch.float64)
    values = [found.value for found in distances(federation, pairs, settings, cell.seed)]
    matrix[*places] = torch.tensor(values, dtype=torch.float64)
    matrix = matrix + matrix.T
    seconds, traffic = perf_counter() - began, federation.ledger.bytes() / len(clients)
    classes = [f"{first} {second}" for first, second in (client.classes for client in clients)]
    about = {"stamp": stamp, "problem": cell.problem, "support": support, "seconds": seconds, "bytes": traffic}
    arrays = {name: np.array(value) for name, value in {**about, "classes": classes, "matrix": matrix.numpy()}.items()}
    folder.save_arrays(file, arrays)
    _cost(rows, support, seconds, traffic)
    return matrix


def _cost(rows: _Rows, support: int, seconds: float, traffic: float) -> None:
    rows.add(f"distances S={support}", "seconds", seconds)
    rows.add(f"distances S={support}", "bytes", traffic)  # of a client, both ways


def draw(rows: list[Row], folders: list[Path], out: Path) -> dict[str, Path]:
    """The distance matrices (Figure 15), and accuracies beside the paper's."""
    return _boost_pictures.draw(rows, folders, out)


def tables(rows: list[Row]) -> list[tuple[str, Lines]]:
    """Tables 2 to 5: ours, and the paper's beneath."""
    return _boost_pictures.tables(rows)
