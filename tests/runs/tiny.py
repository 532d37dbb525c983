"""Configs that train in a second."""

from anabranch.runs import Config, from_dict, merged

TINY = {
    "problem": "8gaussians-moons",
    "method": "vanilla",
    "flow": {"source": "8gaussians", "rounds": 12, "batch": 16},
    "data": {"target": "moons", "points": 40, "groups": [[0], [1]]},
    "potential": {"before": 8, "batch": 16},
    "semidiscrete": {"rounds": 30, "local_rounds": 8, "count": 64, "noises": 512, "block": 256},
    "evaluation": {"nfe": [1, 2], "points": 64, "batches": 2, "dopri5": False},
    "run": {"threads": 1, "checkpoint_every": 5},
}


def tiny(**changes: object) -> Config:
    """A tiny config with some sections changed."""
    return from_dict(merged(TINY, changes))
