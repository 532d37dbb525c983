"""The papers' settings are within the means of a silo on a GPU; absurd ones are not."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anabranch.errors import RefusedError
from anabranch.federation import Silo
from anabranch.federation import _means as means
from anabranch.methods.ffm._half import check_means, cost_of_step
from anabranch.recipes import StudyCell, recipe, recipes
from anabranch.recipes.studies import flow_images

IMAGES = [name for name, found in recipes().items() if found.values.get("study") == "flow_images"]


def settings_of(name):
    """Every distinct one of the recipe's largest scale, with what a silo would look up at most."""
    found = recipe(name)
    scale = "paper" if "paper" in found.values["scales"] else list(found.values["scales"])[-1]
    for problem, method, _ in found.cells(scale, seed=0):
        cell = StudyCell(problem, method, 0, scale, found.options(problem, method, scale), Path(), 1)
        yield flow_images.config_of(cell).settings


@pytest.fixture
def silo(monkeypatch):
    """One that believes to compute on a GPU with 24 GiB."""
    monkeypatch.setattr(Silo, "device", torch.device("cuda"))
    monkeypatch.setattr(means, "memory_of", lambda device: 24 * 2**30)
    return Silo("a", torch.zeros(4, 2))


def test_all_recipes_of_images_are_looked_at():
    assert {"ffm-cifar10", "ffm-cifar10-32", "ffm-ablation", "ffm-imagenet64", "ffm-fashion"} <= set(IMAGES)


@pytest.mark.parametrize("name", IMAGES)
def test_the_papers_scale_is_affordable_on_a_gpu(silo, name):
    for settings in settings_of(name):
        check_means(silo, settings, math.prod(settings.images.shape), 1 / 3)


def test_it_is_not_on_a_cpu():
    settings = next(settings_of("ffm-cifar10"))
    with pytest.raises(RefusedError, match=r"one question may take 1.1e\+09 on its CPU"):
        check_means(Silo("a", torch.zeros(4, 2)), settings, 3072, 1 / 3)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("flow", {"batch": 2**20}),
        ("images", {"channels": 2**16}),
        ("coupling", {"candidates": 2**24}),
        ("coupling", {"descent_steps": 2**30, "transform": "descent"}),
    ],
)
def test_what_is_absurd_is_refused_there_too(silo, section, change):
    settings = next(found for found in settings_of("ffm-cifar10") if found.coupling.name == "potential")
    greedy = replace(settings, **{section: replace(getattr(settings, section), **change)})
    with pytest.raises(RefusedError):
        check_means(silo, greedy, 3072, 1 / 3)


def test_passes_need_less_memory_and_no_less_work():
    settings = next(settings_of("ffm-cifar10"))
    whole, parts = (
        cost_of_step(replace(settings, flow=replace(settings.flow, passes=passes)), 3072, 1 / 3) for passes in (1, 4)
    )
    assert parts.numbers < 0.4 * whole.numbers and parts.work == whole.work
