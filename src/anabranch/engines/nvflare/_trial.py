"""A federation of one machine: server, sites and certificates, for as long as it is needed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.engines.nvflare._kits import Kits, provision, read_kits, start, stop


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
    """The site folders under a folder, by name."""
    return {place.name: place for place in sorted(sites.iterdir()) if (place / "site.toml").exists()}


def _provision(folder: Path, names: list[str]) -> Kits:
    """Kits at two ports of this machine that nobody listens at."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        port, admin_port = one.getsockname()[1], other.getsockname()[1]
    return provision(folder, names, port=port, admin_port=admin_port)
