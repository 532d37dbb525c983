"""Trains on NVFLARE: submits a job, watches it, and submits the next one until the run is finished."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anabranch.engines._progress import Follower
from anabranch.engines.nvflare._coordinator import HANDED, RUNS, STATUS
from anabranch.engines.nvflare._job import write_job
from anabranch.engines.nvflare._kits import Kits
from anabranch.engines.nvflare._session import Console
from anabranch.engines.nvflare._simulator import end, start_simulator
from anabranch.engines.nvflare._siteapp import SITES
from anabranch.errors import AnabranchError
from anabranch.runs import Config, Notes, Row, RunFolder

LOG = "nvflare.log"  # what NVFLARE's simulator printed, in the run folder
GRACE = 20.0  # seconds that a missing site has to come back before the next job begins without it
FRUITLESS = 3  # jobs in a row that gain no checkpoint, after which the run is given up


def train_in_simulator(config: Config, path: Path, notes: Notes, sites: Path) -> list[Row]:
    """Runs a config with one NVFLARE process a site, in a folder of this machine; `sites` holds the sites' folders."""
    names = sorted(folder.name for folder in sites.iterdir() if (folder / "site.toml").exists())
    environment = {RUNS: str(path.parent.resolve()), SITES: str(sites.resolve())}

    def one_job(job: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="anabranch-") as workspace:
            process = start_simulator(job, Path(workspace), names, environment, path / LOG)
            try:
                follower = Follower(path, notes, names)
                while process.poll() is None:
                    follower.look()
                    time.sleep(0.2)
                follower.look()
            finally:
                end(process)

    return until_finished(config, path, names, one_job, notes)


def train_on_kits(config: Config, path: Path, notes: Notes, kits: Kits, runs: Path | None = None) -> list[Row]:
    """Runs a config on the federation of these kits. The run lies with the server; what it leaves is fetched.

    `runs` is where the server keeps runs, if that is on this machine; by default where `federation start` puts them.
    """
    names = sorted(kits.sites)
    there = (runs or kits.folder / "runs") / path.name
    with Console(kits, notes.say) as console, tempfile.TemporaryDirectory(prefix="anabranch-") as place:

        def one_job(job: Path) -> None:
            _assembled(console, names, config.federation.quorum, notes)
            follower = Follower(there if there.parent.exists() else path, notes, names)
            record = console.run(job, follower.look)
            fetched = console.fetch(record, Path(place))
            if fetched is not None:
                _take_over(fetched, path)
                shutil.rmtree(fetched, ignore_errors=True)
            follower.look()

        try:
            return until_finished(config, path, names, one_job, notes)
        except KeyboardInterrupt:
            notes.say(_how_to_go_on(there, path))
            raise


def until_finished(
    config: Config, path: Path, names: Sequence[str], one_job: Callable[[Path], None], notes: Notes
) -> list[Row]:
    """Jobs, one after another, until the run in the folder is finished."""
    folder, fruitless = RunFolder(path), 0
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="anabranch-job-") as place:
        while not folder.finished:
            before = folder.checkpoints()
            (path / STATUS).unlink(missing_ok=True)
            one_job(write_job(Path(place) / "job", config, path.name, names))
            status = _status(path)
            fruitless = 0 if folder.checkpoints() != before else fruitless + 1
            if status["state"] == "failed" or fruitless == FRUITLESS:
                raise AnabranchError(status["sentence"])
            if not folder.finished:
                notes.say(f"{status['sentence']} The next job goes on from the last checkpoint.")
    rows: list[Row] = folder.read_json("results.json")["rows"]
    return rows


def _how_to_go_on(there: Path, path: Path) -> str:
    """What to know of an interrupted run: while a job runs its checkpoints are `there`, with the server."""
    resume = f"'anabranch resume {path}'"
    if there.exists() and not RunFolder(there).checkpoints():
        return f"There was no checkpoint yet; {resume} starts the run over."
    server = f"with the server, in {there}, and not in {path}" if there.exists() else f"with the server, not in {path}"
    return f"The last checkpoint is {f'in {path}' if there == path else server}; {resume} carries on from it."


def _assembled(console: Console, names: Sequence[str], quorum: int, notes: Notes) -> None:
    """Waits for the sites: a while for all of them, and for as long as it takes for the quorum."""
    started, told = time.monotonic(), False
    while True:
        missing = sorted(set(names) - set(console.present()))
        late = time.monotonic() - started > GRACE
        if not missing or (late and len(names) - len(missing) >= quorum):
            return
        if late and not told:
            notes.say(f"Waiting for {', '.join(missing)}: {quorum} sites are needed.")
            told = True
        time.sleep(1.0)


def _take_over(fetched: Path, path: Path) -> None:
    """What the server's part of the run folder holds, where the folder is not on this machine anyway."""
    for source in fetched.rglob(HANDED):
        if source.is_dir():
            shutil.copytree(source, path, dirs_exist_ok=True)


def _status(path: Path) -> dict[str, str]:
    """How the job says that it ended; one that was cut off says nothing, and is worth another try."""
    try:
        status: dict[str, str] = json.loads((path / STATUS).read_text())
    except (OSError, ValueError):
        return {"state": "again", "sentence": f"The job of {path.name} was cut off."}
    return {"sentence": "", **status}
