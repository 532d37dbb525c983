"""Trains in Flower's simulation: in a process of ours, which takes Ray's processes along when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from anabranch.engines._progress import Follower
from anabranch.errors import AnabranchError
from anabranch.runs import Notes, Row, RunFolder

SITES = "ANABRANCH_SITES"  # the folder that holds the site folders
STATUS = "status.json"
LOG = "flower.log"  # what Flower and Ray printed, in the run folder
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray lets everybody in who reaches its ports. Told that this is no machine for clusters, it listens at 127.0.0.1.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def train_in_simulation(path: Path, notes: Notes, sites: Path) -> list[Row]:
    """Runs what the run folder `path` was begun with, on the sites whose folders lie under `sites`."""
    folder = RunFolder(path)
    if not folder.finished:
        (path / STATUS).unlink(missing_ok=True)
        names = [site.name for site in site_folders(sites)]
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
            process = _start(path, sites, Path(place))
            try:
                follower = Follower(path, notes, names)
                while process.poll() is None and not (path / STATUS).exists():  # an orderly end takes Ray seconds
                    follower.look()
                    time.sleep(0.2)
                follower.look()
            finally:
                _end(process)
        status = _status(path)
        if status["state"] != "finished":
            raise AnabranchError(status["sentence"])
    rows: list[Row] = folder.read_json("results.json")["rows"]
    return rows


def site_folders(sites: Path) -> list[Path]:
    """The site folders under a folder, in the order of Flower's nodes."""
    return sorted(place for place in sites.iterdir() if (place / "site.toml").exists())


def _start(path: Path, sites: Path, place: Path) -> subprocess.Popen[bytes]:
    """The simulation in a process group of its own, with `place` for the files of Flower and Ray."""
    command = [sys.executable, "-m", "anabranch.engines.flower._simulation", str(path.resolve()), str(place)]
    environment = {**os.environ, **OFFLINE, SITES: str(sites.resolve()), "FLWR_HOME": str(place)}
    with (path / LOG).open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=environment
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever is left of the group. Nothing is lost: checkpoints and logs are on disk before a round counts."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def _status(path: Path) -> dict[str, str]:
    """How the simulation says that it ended; one that was cut off says nothing."""
    try:
        status: dict[str, str] = json.loads((path / STATUS).read_text())
    except (OSError, ValueError):
        sentence = f"Flower's simulation was cut off; see {path / LOG}, then continue with 'anabranch resume {path}'."
        return {"state": "cut off", "sentence": sentence}
    return status
