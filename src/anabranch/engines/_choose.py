"""The engines by name."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from anabranch.errors import UsageError, unknown
from anabranch.runs import Config, Notes, Row, RunFolder, coverage_of, resume, train

ENGINES = {
    "local": "all silos in this process",
    "flower-sim": "Flower's simulation: one process for all sites on this machine, for coarse rounds",
    "nvflare-sim": "NVFLARE's simulator: a process for each site on this machine",
    "nvflare-poc": "NVFLARE on this machine with a server, sites and certificates of its own, ended with the run",
    "nvflare": "NVFLARE between institutions: the federation whose kits lie in the folder named by --federation",
}
RECORD = "engine.json"


def train_on(engine: str, config: Config, path: Path, notes: Notes, federation: Path | None = None) -> list[Row]:
    """Trains on the named engine. The run folder is the same on every one."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if (engine == "nvflare") != (federation is not None):
        raise UsageError(
            "--engine nvflare and --federation FOLDER (where its kits lie) belong together; give both, or neither."
        )
    if engine == "nvflare" and any(asdict(config.privacy).values()):
        raise UsageError("What guards a site's answers is the site's own setting; leave [privacy] out of the run.")
    if engine == "local":
        return train(config, path, notes)
    if engine == "flower-sim":
        require("flower", "flwr", "ray")
    else:
        require("nvflare")
    if federation is not None:
        from anabranch.engines.nvflare import read_kits

        read_kits(federation)  # a folder without kits is refused before anything is written
    folder = RunFolder(path)
    with folder.locked():
        folder.begin(config)
    place = None if federation is None else str(federation.resolve())
    folder.write_json(RECORD, {"engine": engine, "federation": place})
    with _ended_like_an_interrupt():
        return _train_elsewhere(engine, config, path, notes, federation)


def require(extra: str, *packages: str) -> None:
    """Refuses to go on without the packages of an extra (by default the one of its name), and says how to get them."""
    for package in packages or (extra,):
        if find_spec(package) is None:
            raise UsageError(f'This needs {package}, which is not installed; pip install "anabranch[{extra}]".')


def resume_on_its_engine(path: Path, notes: Notes) -> list[Row]:
    """Continues a run on the engine that it was begun on."""
    if not (path / RECORD).exists():
        return resume(path, notes)
    record, config = RunFolder(path).read_json(RECORD), RunFolder(path).config()
    federation = record["federation"]
    return train_on(record["engine"], config, path, notes, None if federation is None else Path(federation))


@contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """A request to terminate unwinds like Ctrl-C, so that the processes that were started are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _train_elsewhere(engine: str, config: Config, path: Path, notes: Notes, federation: Path | None) -> list[Row]:
    from anabranch.engines._trial import write_sites

    if federation is None:
        if config.composes and not RunFolder(path).finished:
            for warning in coverage_of(config).check(config.composition.force):
                notes.say(warning)
        write_sites(config, path / "sites")
    if engine == "flower-sim":
        from anabranch.engines.flower import train_in_simulation

        return train_in_simulation(path, notes, path / "sites")
    from anabranch.engines.nvflare._drive import train_in_simulator, train_on_kits
    from anabranch.engines.nvflare._kits import read_kits
    from anabranch.engines.nvflare._trial import on_own_kits

    if federation is not None:
        return train_on_kits(config, path, notes, read_kits(federation))
    if engine == "nvflare-sim":
        return train_in_simulator(config, path, notes, path / "sites")
    with on_own_kits(path / "federation", path / "sites", path.parent) as kits:
        return train_on_kits(config, path, notes, kits, path.parent)
