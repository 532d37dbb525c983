"""A federation of one machine: server, sites and certificates, for as long as it is needed."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.engines._trial import write_sites
from anabranch.engines.nvflare._kits import Kits, provision, read_kits
from anabranch.engines.nvflare._processes import start, stop
from anabranch.runs import Config


@contextmanager
def on_own_kits(folder: Path, sites: Path, runs: Path) -> Iterator[Kits]:
    """Kits in `folder` for the sites whose folders lie under `sites`, started and, at the end, stopped."""
    places = site_places(sites)
    kits = read_kits(folder) if folder.exists() else _provision(folder, sorted(places))
    start(kits, places, runs)
    try:
        yield kits
    finally:
        stop(kits)


def site_places(sites: Path) -> dict[str, Path]:
    """The site folders under a folder, by name; none where there is no such folder."""
    return {place.parent.name: place.parent for place in sorted(sites.glob("*/site.toml"))}


def make_trial(folder: Path, config: Config) -> Kits:
    """Kits in a new folder, and under it a site's folder for every silo of the config, with its part of the data."""
    with tempfile.TemporaryDirectory(prefix="anabranch-") as place:
        names = write_sites(config, Path(place))
        kits = _provision(folder, names)
        shutil.copytree(place, folder / "sites")
    return kits


def _provision(folder: Path, names: list[str]) -> Kits:
    """Kits at two ports of this machine that nobody listens at."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        port, admin_port = one.getsockname()[1], other.getsockname()[1]
    return provision(folder, names, port=port, admin_port=admin_port)
