"""Clients with two classes each, dealt from an image set: training points, and held-out ones from the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from anabranch import seeds
from anabranch.data import ImageSet, load_images
from anabranch.errors import DataError, UsageError
from anabranch.federation import Silo

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))  # FedWAD, Appendix D.5
LEAST = 2  # clients that hold each pair, where there is structure
CLASSES = 10
# Mean and deviation of a channel, as FedRep's public experiments scale what a classifier sees.
SCALES = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
# A random encoder for images that are compared by a code: outputs, side and stride of each convolution.
ENCODER = ((12, 3, 2), (24, 3, 2), (16, 2, 1))  # 3 × 32 × 32 becomes 16 × 7 × 7 = 784 numbers


@dataclass(frozen=True)
class Client:
    """One client: its classes, its images to train on, and others of the same classes to be scored on."""

    name: str
    classes: tuple[int, int]
    train: ImageSet
    test: ImageSet


def pairs_of(clients: int, structured: bool, generator: torch.Generator) -> list[tuple[int, int]]:
    """The two classes of each client, sorted.

    Structured: one of five disjoint pairs, each held by two clients at least and the others at random. Otherwise any
    two classes.

    >>> pairs_of(10, True, torch.Generator()) == sorted(PAIRS * 2)
    True
    """
    if clients < (LEAST * len(PAIRS) if structured else 2):
        raise UsageError(f"{clients} clients were asked for; give {LEAST * len(PAIRS) if structured else 2} or more.")
    if structured:
        more = torch.randint(len(PAIRS), (clients - LEAST * len(PAIRS),), generator=generator).tolist()
        return sorted([*PAIRS * LEAST, *(PAIRS[number] for number in more)])
    drawn = [torch.randperm(CLASSES, generator=generator)[:2].sort().values.tolist() for _ in range(clients)]
    return sorted((first, second) for first, second in drawn)


def deal(label: Tensor, pairs: Sequence[tuple[int, int]], most: int, generator: torch.Generator) -> list[Tensor]:
    """Sorted, disjoint indices for each client: a class is cut evenly among its holders, who get `most` / 2 at most."""
    hands: list[list[Tensor]] = [[] for _ in pairs]
    for number in sorted({number for pair in pairs for number in pair}):
        holders = [client for client, pair in enumerate(pairs) if number in pair]
        found = (label == number).nonzero()[:, 0]
        found = found[torch.randperm(len(found), generator=generator)]
        if len(found) < len(holders):
            raise DataError(f"Class {number} has {len(found)} images, too few for the {len(holders)} clients with it.")
        for client, part in zip(holders, found.tensor_split(len(holders)), strict=True):
            hands[client].append(part[: most // 2])
    return [torch.cat(hand).sort().values for hand in hands]


def clients_of(
    data: str, clients: int, structured: bool, samples: int, held_out: int, seed: int, folder: Path | None = None
) -> list[Client]:
    """All clients, those with the same classes side by side; scored on images of the test split alone."""
    pairs = pairs_of(clients, structured, seeds.generator(seed, "pairs"))
    dealt = []
    for split, most in (("train", samples), ("test", held_out)):
        images = load_images(data, split, folder)
        dealt.append([images[i] for i in deal(images.label, pairs, most, seeds.generator(seed, "deal", split))])
    width = len(str(clients))
    names = [f"client-{number:0{width}d}" for number in range(1, clients + 1)]
    return [Client(*parts) for parts in zip(names, pairs, *dealt, strict=True)]


def compared(clients: Sequence[Client], seed: int) -> list[Silo]:
    """Silos as they are compared: MNIST by its pixels, colour images by the code of an untrained encoder.

    All is public data on one machine here, so a measure may have as many atoms as a client has points.
    """
    return [
        Silo(
            client.name,
            codes(client.train, seed) if client.train.images.shape[1] == 3 else client.train.points(),
            client.train.label,
            smallest_part=1,
            secret=seeds.derive(seed, "secret", client.name),
        )
        for client in clients
    ]


def learning(clients: Sequence[Client], data: str, seed: int) -> list[Silo]:
    """Silos as they learn: images of all sets as they are, but for the scale of each channel."""
    return [
        Silo(
            client.name,
            _scaled(client.train, data),
            client.train.label,
            _scaled(client.test, data),
            secret=seeds.derive(seed, "secret", client.name),
            held_out_label=client.test.label,
        )
        for client in clients
    ]


@torch.no_grad()
def codes(images: ImageSet, seed: int) -> Tensor:
    """What a random encoder, the same for all clients, makes of the images: (n, 784) for CIFAR's."""
    x = images.images.float() / 255
    generator = seeds.generator(seed, "encoder")
    for number, (outputs, side, stride) in enumerate(ENCODER):
        bound = (x.shape[1] * side * side) ** -0.5
        weight = torch.rand(outputs, x.shape[1], side, side, generator=generator).mul(2).sub(1).mul(bound)
        x = functional.conv2d(x, weight, stride=stride, padding=side // 2 if stride > 1 else 0)
        x = functional.relu(x) if number + 1 < len(ENCODER) else x
    return x.flatten(1)


def _scaled(images: ImageSet, data: str) -> Tensor:
    if data not in SCALES:
        return images.points()
    mean, deviation = (torch.tensor(values)[:, None, None] for values in SCALES[data])
    return ((images.images.float() / 255 - mean) / deviation).flatten(1)
