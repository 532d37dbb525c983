"""What helps where memory runs out: before a run trains, while a composition or a distance is at work, and after it.

A flow that composes nothing says by itself what its phases need.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from anabranch.errors import GOES_ON, spared
from anabranch.runs._config import Config
from anabranch.runs._images import device_of


def spared_data(config: Config) -> AbstractContextManager[None]:
    """Within, memory that runs out becomes a sentence about data that does not fit."""
    return spared(lambda: _too_much_data(config))


def spared_method(config: Config) -> AbstractContextManager[None]:
    """The same of what is trained, or compared."""
    if config.compares:
        return spared(lambda: _too_large_a_distance(config))
    return spared(lambda: _too_large_a_composition(config)) if config.composes else nullcontext()


def spared_judging(config: Config) -> AbstractContextManager[None]:
    """The same of a trained flow that cannot be judged."""
    return spared(lambda: _too_many_points(config))


def _too_much_data(config: Config) -> str:
    data, ways = config.data, []
    names = data.files or (data.target,)
    if data.image_set or data.folders:
        ways.append(f"take fewer data.images ({data.images or 'all'})")
    elif not data.attributed and any(name.endswith(".npz") for name in names):
        ways.append(f"take fewer data.images ({data.images or 'all'}), if it is images")
    elif not data.from_file and not data.source:
        ways.append(f"lower data.points ({data.points})")
    if device_of(config).type != "cpu":
        ways.append("take run.device = 'cpu'")
    what = ", or ".join([*ways, "have other programs leave more memory"])
    return f"Memory ran out while data was read and brought to where it is used; {what}."


def _too_large_a_distance(config: Config) -> str:
    return (
        f"Memory ran out while data sets were compared; lower distance.support ({config.distance.support}), or have"
        " other programs leave more memory."
    )


def _too_large_a_composition(config: Config) -> str:
    experts = config.experts
    width = (
        f"experts.channels ({experts.channels})"
        if experts.network.endswith("unet")
        else f"experts.hidden ({experts.hidden})"
    )
    batch = f"experts.batch ({experts.batch})"
    if config.student.steps:
        batch += f", student.batch ({config.student.batch})"
    return (
        f"Memory ran out while '{config.method}' was trained. Once other programs leave more memory, {GOES_ON} goes on"
        f" from the last checkpoint with the run as it is. A new run needs less with smaller {batch} or {width}."
    )


def _too_many_points(config: Config) -> str:
    ways = [f"fewer samples (evaluation.points, {config.evaluation.points})"]
    if not config.composes and config.coupling.name == "semidiscrete" and config.evaluation.certify:
        ways.append(f"fewer noises to certify duals with (evaluation.certify, {config.evaluation.certify} a point)")
    return (
        "Memory ran out while what was trained was judged. It is trained and kept: 'anabranch sample' draws from it,"
        f" and {GOES_ON} judges it once other programs leave more memory. A new run could be judged by"
        f" {' or '.join(ways)}."
    )
