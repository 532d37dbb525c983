"""Compositions that train in a second: the corners of a square, of which two silos have seen three."""

from anabranch.methods.dcfm import COMPOSITIONS
from anabranch.runs import Config, from_dict, merged

NOVEL = "horizontal=right,vertical=top"
HELD = {
    "north": ["horizontal=left,vertical=top", "horizontal=left,vertical=bottom"],
    "south": ["horizontal=left,vertical=bottom", "horizontal=right,vertical=bottom"],
}
DATA = {"target": "corners", "points": 120, "partition": "combinations", "combinations": HELD}
SMALL = {
    "problem": "corners",
    "data": DATA,
    "experts": {"steps": 40, "batch": 16, "hidden": 8, "layers": 2, "embedding": 4},
    "composition": {"every": 10},
    "federation": {"fused": False},
    "evaluation": {"nfe": [4], "points": 32},
    "run": {"threads": 1, "checkpoint_every": 2},
}
STAGES = {
    "dcfm-a": {"peers": {"rounds": 2, "steps": 4}},
    "dcfm-a-simultaneous": {"peers": {"rounds": 2, "steps": 4}},
    "dcfm-b": {"student": {"steps": 40, "batch": 16, "trajectories": 16, "path_steps": 4, "refresh": 10}},
    "hybrid": {
        "peers": {"rounds": 1, "steps": 4},
        "student": {"steps": 40, "batch": 16, "trajectories": 16, "path_steps": 4, "refresh": 10},
    },
    "fedflow": {"federated": {"rounds": 7, "local_steps": 3}},
    "ddm-learned": {"mixture": {"router_steps": 5, "router_samples": 16}},
}


def composing(method: str = "dcfm-a", instead: dict[str, object] | None = None, **changes: object) -> Config:
    """A small composition with some sections changed, and perhaps other data `instead`."""
    small = SMALL if instead is None else {**SMALL, "data": instead}
    return from_dict(merged(COMPOSITIONS[method], small, STAGES.get(method, {}), {"method": method}, changes))
