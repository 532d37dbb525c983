"""What tests of the study `flow_images` share."""

import pytest
import torch

from anabranch.metrics import Inception
from anabranch.recipes._study import StudyRun
from anabranch.recipes.studies.flow_images import _eyes as eyes_module
from tests.recipes.flow_images.cells import METHODS, cell


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("flows")
    rows = []
    for method in METHODS:
        run = StudyRun("flow_images", cell(out, method))
        run.run()
        rows += run.rows()
    return out, rows


class Means(torch.nn.Module):
    """A stand-in for Inception: means of the nine parts of an image, over and over."""

    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 3).flatten(1).repeat(1, 228)[:, :2048]


@pytest.fixture
def inception(monkeypatch, tmp_path):
    """FID by a network that takes no time, with a cache of its own; says how often it was opened."""
    opened = []

    def load(path=None, device="cpu", tf32=False):
        opened.append(tf32)
        return Inception(Means(), device, tf32)

    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(eyes_module.Inception, "load", load)
    monkeypatch.setattr(eyes_module, "weights", lambda name: tmp_path / name)
    monkeypatch.setattr(eyes_module, "_OPEN", {})
    return opened
