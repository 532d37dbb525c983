"""A small laboratory: silos with two Gaussian classes each, networks of a few units, and an ear on every message."""

import pytest
import torch

from anabranch.federation import Federation, Silo
from anabranch.methods.personal import PersonalSettings
from anabranch.seeds import derive, generator

CENTRES = 3 * torch.eye(6)  # one for each class, far from the others


def points(labels, seed):
    label = torch.tensor(labels)
    x = CENTRES[label] + 0.5 * torch.randn(len(label), 6, generator=generator(seed, "points"))
    return x, label


class Lab:
    """Everything is small and seeded; whatever matters to a test can be given."""

    points = staticmethod(points)

    @staticmethod
    def silo(name, classes=(0, 1), count=30, held=20, **options):
        x, label = points([classes[i % len(classes)] for i in range(count)], derive(1, name))
        test, truth = points([classes[i % len(classes)] for i in range(held)], derive(2, name))
        return Silo(name, x, label, test, secret=derive(3, name), held_out_label=truth, **options)

    @classmethod
    def silos(cls, number=4, pairs=((0, 1), (2, 3), (4, 5)), **options):
        return [cls.silo("abcdefghijklmnopqrst"[i], pairs[i % len(pairs)], **options) for i in range(number)]

    @staticmethod
    def settings(method="fedavg", **options):
        defaults = {"rounds": 3, "participation": 1.0, "hidden": (16, 8), "classes": 6, "tune_epochs": 3}
        return PersonalSettings(method, **{**defaults, **options})


@pytest.fixture(scope="session")
def lab():
    return Lab


@pytest.fixture
def heard(monkeypatch):
    """Every exchange of the test: (question, names asked, replies)."""
    exchanges = []
    plain = Federation.ask

    def ask(self, question, to=None, *rest, **options):
        replies = plain(self, question, to, *rest, **options)
        exchanges.append((question, list(self.names if to is None else to), replies))
        return replies

    monkeypatch.setattr(Federation, "ask", ask)
    return exchanges
