"""Workers of `reproduce` do not outlive it, and Ctrl-C leaves what is finished."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from anabranch.recipes import _worker, cells_of, recipe, reproduce
from anabranch.recipes._reproduce import _work
from anabranch.runs import RunFolder


def test_workers_end_when_who_started_them_is_killed(tmp_path):
    words = [sys.executable, "-m", "anabranch", "reproduce", "ffm-2d", "--scale", "small", "--jobs", "2"]
    process = subprocess.Popen([*words, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        workers = []
        while len(workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            workers = [p for p in psutil.Process(process.pid).children() if "spawn_main" in " ".join(p.cmdline())]
    finally:
        process.kill()
        process.wait()
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, 20)
    for worker in alive:
        worker.kill()
    assert not alive


def workers_of(process):
    return [p for p in psutil.Process(process.pid).children() if "spawn_main" in " ".join(p.cmdline())]


@pytest.fixture
def cells(tmp_path):
    """Cells of a recipe, of which the first is finished."""
    found = cells_of(recipe("ffm-2d"), "smoke", tmp_path, 0, [], [])
    folder = RunFolder(found[0].path)
    folder.path.mkdir(parents=True)
    folder.begin(found[0].config)
    folder.write_json("results.json", {"seconds": 1.0, "rounds": 1, "rows": []})
    return found


def test_an_interrupt_says_what_is_kept_and_how_to_go_on(tmp_path, cells):
    words = [sys.executable, "-m", "anabranch", "reproduce", "ffm-2d", "--scale", "smoke", "--jobs", "1"]
    words += ["--seed", "0", "--out", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        deadline = time.monotonic() + 60
        while not workers_of(process) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: all processes of the group hear it
        said = "".join(process.communicate(timeout=60)[0].split())  # wherever a console has divided lines
    finally:
        process.kill()
    wanted = f"Stopped: 1 of {len(cells)} cells are finished and kept in {tmp_path}. The same command goes on"
    assert process.returncode == 130 and wanted.replace(" ", "") in said
    assert "Traceback" not in said and [path.parent for path in tmp_path.rglob("results.json")] == [cells[0].path]


def test_an_interrupt_in_python_warns_and_goes_on_its_way(tmp_path, cells, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("anabranch.recipes._reproduce._run", interrupted)
    wanted = re.escape(f"1 of {len(cells)} cells are finished and kept in {tmp_path}")
    with pytest.warns(UserWarning, match=wanted), pytest.raises(KeyboardInterrupt):
        reproduce(recipe("ffm-2d"), "smoke", cells, 1, interrupted)


def test_a_worker_that_was_interrupted_begins_nothing_more():
    class Running:
        def __init__(self):
            self.begun = 0

        def run(self):
            self.begun += 1
            signal.raise_signal(signal.SIGINT)

    cell = Running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as a worker is
    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                _work(cell)
        assert cell.begun == 1
    finally:
        with pytest.raises(KeyboardInterrupt):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Worried:
    """A cell that warns of something, and is never finished."""

    name: str
    path: Path = Path("nowhere")
    price, alone = 1.0, False

    def finished(self):
        return False

    def run(self):
        warnings.warn(f"{self.name} is worried.", stacklevel=1)


def test_what_a_worker_warns_of_is_said_here(capfd):
    """By who reproduces, in words; a worker alone would print where in the code it arose."""
    with pytest.warns(UserWarning, match="is worried") as caught:
        reproduce(recipe("ffm-2d"), "smoke", [Worried("ann"), Worried("bob")], 2, lambda *_: None)
    assert sorted(str(warning.message) for warning in caught) == ["ann is worried.", "bob is worried."]
    assert "worried" not in capfd.readouterr().err


def test_a_folder_that_was_swept_away_ends_neither_a_cell_nor_who_waits_for_it(tmp_path, monkeypatch):
    folder = tmp_path / "swept"
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which a worker replaces
    monkeypatch.setattr(_worker, "_end_with", lambda parent: None)
    _worker.begin_worker(os.getpid(), str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("nobody hears", stacklevel=1)
        _worker.Said(folder).pass_on()
        folder.mkdir()
        warnings.warn("ann is worried", stacklevel=1)
    with pytest.warns(UserWarning, match="ann is worried"):
        _worker.Said(folder).pass_on()


def test_a_sentence_is_passed_on_once_and_when_it_is_whole(tmp_path):
    said, place = _worker.Said(tmp_path), tmp_path / "1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place.write_text('"ann is')
        said.pass_on()  # it is still being written
        place.write_text('"ann is worried"\n')
        with pytest.raises(UserWarning, match="ann is worried"):
            said.pass_on()
        said.pass_on()
