"""What a run tells while it is judged: every evaluation, of as many as there will be."""

import numpy as np
import pytest

from anabranch.runs import Notes, from_dict, train
from tests.runs.composing import composing
from tests.runs.test_images import config as of_images
from tests.runs.tiny import tiny


def of_points(folder):
    """Points from two files, some of them held out."""
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        np.save(folder / f"{name}.npy", random.normal(size=(60, 3)).astype(np.float32))
    files = {"files": [str(folder / "a.npy"), str(folder / "b.npy")], "held_out": 0.2}
    evaluation = {"points": 16, "nfe": [1, 3]}
    return from_dict({"method": "lot", "data": files, "flow": {"rounds": 2, "batch": 8}, "evaluation": evaluation})


@pytest.mark.parametrize("kind", ["shape", "points", "images"])
def test_evaluations_are_counted_to_their_end(kind, tmp_path):
    config = {
        "shape": lambda: tiny(evaluation={"dopri5": True}),
        "points": lambda: of_points(tmp_path),
        "images": of_images,
    }[kind]()
    told: list[tuple[int, int]] = []
    train(config, tmp_path / "run", Notes(judged=lambda done, total: told.append((done, total))))
    total = told[-1][1]
    assert total > sum(config.evaluation.nfe)
    assert told == [(0, 0), *((number, total) for number in range(1, total + 1))]


def test_of_a_composition_it_is_only_told_that_it_is_judged(tmp_path):
    told: list[tuple[int, int]] = []
    train(composing("ddm"), tmp_path / "run", Notes(judged=lambda done, total: told.append((done, total))))
    assert told == [(0, 0)]
