"""Options of `anabranch coverage` that would change nothing: refused, with what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from anabranch.errors import UsageError

# What a run's file calls the same thing, in its section [data].
KEYS = {
    "attributes": "attributes",
    "count": "points",
    "observed": "observed",
    "silos": "silos",
    "partition": "partition",
    "alpha": "alpha",
    "seed": "seed",
}
DIVIDING = ("partition", "alpha")


def given(context: typer.Context) -> list[str]:
    """The options that were typed, and not left at their defaults."""
    found = []
    for name in KEYS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found.append(name)
    return found


def refuse_idle(typed: Sequence[str], files: Sequence[Path], silos: int, partition: str) -> None:
    """Refuses an option that does nothing to these files or, where there are none, to a source."""
    for name in typed:
        if [path.suffix for path in files] == [".toml"]:
            raise UsageError(
                f"--{name} is for archives and --data; {files[0]} says itself what its silos hold. Change"
                f" data.{KEYS[name]} there."
            )
        if name == "attributes" and not files:
            raise UsageError("--attributes names arrays of files, and --data has attributes of its own; leave it out.")
        if name == "count" and files:
            raise UsageError("--count is how many samples --data draws; of files all are counted. Leave it out.")
        if silos == 1 and (name in DIVIDING or (name == "seed" and files)):
            raise UsageError(
                f"--{name} is about dividing one file, or --data, among silos, and nothing is divided; give --silos 2"
                f" or more, or leave --{name} out."
            )
        if name == "alpha" and partition == "iid":
            raise UsageError("--alpha is of --partition dirichlet, and iid has none; give that, or leave --alpha out.")
