"""NVFLARE's simulator: a process for each site on this machine, without certificates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from anabranch.engines.nvflare._job import SERVER_CLASSES, SITE_CLASSES


def start_simulator(
    job: Path, workspace: Path, sites: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Starts the job with one process a site, in a process group of its own; what it prints goes to `log`."""
    (workspace / "local").mkdir(parents=True, exist_ok=True)
    allowed = {"format_version": 2, "class_allow_list": [*SERVER_CLASSES, *SITE_CLASSES]}
    (workspace / "local" / "resources.json").write_text(json.dumps(allowed))
    command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job), "-w", str(workspace)]
    command += ["-c", ",".join(sorted(sites)), "-t", str(len(sites))]
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **environment}
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the simulator with all its sites, and waits until the last of them is gone: it may hold the run's lock."""
    with suppress(ProcessLookupError):
        for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            os.killpg(process.pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # raises when the group is empty
                time.sleep(0.05)
