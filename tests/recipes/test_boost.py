"""Clients in groups: who holds what, what a cell finds, and what is printed beside the paper."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from anabranch.data import ImageSet
from anabranch.errors import DataError, UsageError
from anabranch.methods.fedwad import cluster
from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import boost, clients
from anabranch.recipes.studies.clients import PAIRS, clients_of, codes, compared, deal, learning, pairs_of
from anabranch.runs import Row


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten classes of tiny images, each bright in another place; the splits have different images."""

    def load(name: str, split: str = "train", folder: object = None) -> ImageSet:
        size = 2000 if split == "train" else 400
        random = generator(0 if split == "train" else 1)
        label = torch.arange(size) % 10
        images = torch.randint(0, 60, (size, 1, 4, 4), generator=random, dtype=torch.uint8)
        images.view(size, 16)[torch.arange(size), label] = 250
        return ImageSet(images, label, tuple("0123456789"))

    monkeypatch.setattr(clients, "load_images", load)


def cell(folder: Path, **changes: Any) -> StudyCell:
    options = {
        **recipe("fedwad-boost").options("mnist-structured-10", "grouping", "smoke"),
        "graphs": ["affinity", 3],
        "learners": ["fedavg", "fedrep"],
        "personal": {"rounds": 2, "hidden": (8,)},
        **changes,
    }
    return StudyCell("mnist-structured-10", "grouping", 0, "smoke", options, folder, 1)


def value(rows: list[Row], method: str, metric: str) -> float:
    return next(float(row["value"]) for row in rows if (row["method"], row["metric"]) == (method, metric))


@pytest.mark.parametrize("count", [10, 20, 100])
def test_structured_clients_hold_one_of_five_pairs_each_held_by_two_or_more(count: int) -> None:
    found = Counter(pairs_of(count, True, generator()))
    assert set(found) == set(PAIRS)
    assert min(found.values()) >= 2
    assert sum(found.values()) == count
    if count == 10:
        assert set(found.values()) == {2}


def test_unstructured_clients_hold_any_two_different_classes() -> None:
    found = pairs_of(400, False, generator())
    assert all(first < second for first, second in found)
    assert len(set(found)) == 45


def test_too_few_clients_for_the_structure_are_refused() -> None:
    with pytest.raises(UsageError, match="give 10 or more"):
        pairs_of(9, True, generator())


def test_dealt_indices_are_disjoint_of_the_right_classes_and_bounded() -> None:
    label = torch.arange(1000) % 10
    pairs = pairs_of(12, False, generator(3))
    hands = deal(label, pairs, 30, generator())
    assert len(torch.cat(hands)) == len(torch.cat(hands).unique())
    for hand, pair in zip(hands, pairs, strict=True):
        assert set(label[hand].tolist()) == set(pair)
        assert all(1 <= int((label[hand] == number).sum()) <= 15 for number in pair)


def test_a_class_with_fewer_images_than_holders_is_refused() -> None:
    with pytest.raises(DataError, match="Class 0 has 1 images"):
        deal(torch.tensor([0, 1, 1, 1]), [(0, 1), (0, 1)], 10, generator())


@pytest.mark.usefixtures("blobs")
def test_clients_train_on_one_split_and_are_scored_on_the_other() -> None:
    train, test = clients.load_images("mnist", "train"), clients.load_images("mnist", "test")
    rows = [{tuple(image.flatten().tolist()) for image in part.images} for part in (train, test)]
    for client, silo in zip(
        found := clients_of("mnist", 10, True, 40, 20, 0), learning(found, "mnist", 0), strict=True
    ):
        assert {tuple(image.flatten().tolist()) for image in client.train.images} <= rows[0]
        assert {tuple(image.flatten().tolist()) for image in client.test.images} <= rows[1]
        assert set(client.test.label.tolist()) == set(client.classes)
        assert silo.held_out is not None and len(silo.held_out) == len(client.test)


@pytest.mark.usefixtures("blobs")
def test_clients_follow_from_the_seed() -> None:
    first, again, other = (clients_of("mnist", 10, True, 40, 20, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a.train.images, b.train.images) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.train.images, b.train.images) for a, b in zip(first, other, strict=True))


def test_colour_images_are_compared_by_784_numbers_of_one_encoder() -> None:
    images = ImageSet(
        torch.randint(0, 256, (6, 3, 32, 32), generator=generator(), dtype=torch.uint8),
        torch.arange(6),
        tuple("abcdef"),
    )
    assert codes(images, 0).shape == (6, 784)
    assert torch.allclose(codes(images[:2], 0), codes(images, 0)[:2], atol=1e-6)
    assert not torch.allclose(codes(images, 0), codes(images, 1))
    client = clients.Client("a", (0, 1), images, images)
    assert compared([client], 0)[0].data.x.shape == (6, 784)
    assert learning([client], "cifar10", 0)[0].data.x.shape == (6, 3072)


@pytest.mark.usefixtures("blobs")
def test_a_cell_finds_planted_groups_and_learns_better_in_them(tmp_path: Path) -> None:
    rows = boost.run(cell(tmp_path))
    assert value(rows, "affinity S=10", "rand_index") == 1
    assert value(rows, "affinity S=10", "missed") == 0
    alone, grouped = value(rows, "fedavg", "accuracy"), value(rows, "fedavg affinity S=10", "accuracy")
    assert value(rows, "fedavg affinity S=10", "lost") == pytest.approx(alone - grouped)
    assert grouped > alone


@pytest.mark.usefixtures("blobs")
def test_distances_are_computed_once_and_again_when_their_settings_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = boost.run(cell(tmp_path, learners=[]))
    with monkeypatch.context() as broken:
        broken.setattr(boost, "distances", None)
        assert boost.run(cell(tmp_path, learners=[])) == first
        with pytest.raises(TypeError):
            boost.run(cell(tmp_path, learners=[], rounds=2))


def test_groups_that_come_out_the_same_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: None
) -> None:
    trained = []
    whole = boost.train_clustered
    monkeypatch.setattr(boost, "train_clustered", lambda *args: trained.append(1) or whole(*args))
    rows = boost.run(cell(tmp_path, learners=["fedavg"], graphs=["affinity", "affinity"]))
    assert trained == [1]
    assert value(rows, "fedavg affinity S=10", "accuracy") > 0


def test_a_graph_in_too_many_parts_gets_more_neighbours() -> None:
    places = torch.tensor([0.0, 0.1, 1.0, 1.1, 9.0, 9.1, 10.0, 10.1])
    apart = (places[:, None] - places).abs()
    with pytest.raises(DataError, match="falls into 4 parts"):
        cluster(apart, 2, 2)
    assert boost._clusters(apart, 2, 2, 0).tolist() == [0] * 4 + [1] * 4


@pytest.mark.usefixtures("blobs")
def test_pictures_and_tables_show_ours_beside_the_papers(tmp_path: Path) -> None:
    rows = boost.run(cell(tmp_path))
    pictures = boost.draw(rows, [tmp_path], tmp_path)
    assert sorted(path.name for path in pictures.values()) == ["accuracy.png", "distances.png"]
    assert all(path.stat().st_size > 5000 for path in pictures.values())
    (_, lines), (_, found) = boost.tables(rows)
    ours, paper = lines[1], lines[2]
    assert ours[:3] == ["FedAvg", "10", "ours"]
    assert paper[:5] == ["FedAvg", "10", "paper", "19.6 ± 0.9", "99.6 ± 0.0"]
    assert found[1][:3] == ["mnist-structured-10", "affinity S=10", "1.000"]


def test_the_recipe_has_every_figure_of_tables_2_to_5() -> None:
    entries = recipe("fedwad-boost").published
    assert Counter(entry["where"] for entry in entries) == {f"Table {number}": 84 for number in (2, 3, 4, 5)}
    assert {entry["problem"] for entry in entries} == set(recipe("fedwad-boost").problems)
    assert all(0 < entry["value"] < 1 and 0 <= entry["spread"] < 0.2 for entry in entries)
    found = {(e["problem"], e["method"]): e["value"] for e in entries}
    assert found["cifar10-random-100", "fedper 5 neighbours S=100"] == 0.836
