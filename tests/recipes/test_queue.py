"""Several processes that fill one folder: each cell is run once, by whoever comes first."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from anabranch.recipes import _queue, cells_of, recipe, reproduce
from anabranch.recipes._queue import Queue
from anabranch.runs import RunFolder


@dataclass
class Made:
    name: str
    done: bool = False

    def finished(self):
        return self.done


def test_cells_come_in_their_order_and_finished_ones_not_at_all():
    a, b, c = Made("a"), Made("b"), Made("c")
    queue = Queue([a, b, c])
    assert queue.first() is a and queue.first() is a and queue.take() is a
    b.done = True
    assert queue.first() is c and queue.take() is c
    assert queue.first() is None and not queue


def test_what_others_are_at_work_on_comes_last_and_after_a_while(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_queue.time, "monotonic", lambda: now[0])
    a, b = Made("a"), Made("b")
    queue = Queue([a, b])
    assert queue.first() is a
    queue.met(queue.take())
    assert queue.first() is b and queue.take() is b
    assert queue and queue.first() is None and queue.with_others == [a]
    now[0] += _queue.AGAIN
    assert queue.first() is a and queue.with_others == [a]  # shown as theirs until it is taken
    assert queue.take() is a and not queue
    queue.met(a)
    a.done = True
    assert queue.first() is None and not queue  # they have finished it


@pytest.fixture
def cells(tmp_path):
    return cells_of(recipe("dcfm-cost"), "smoke", tmp_path, 0, ["ddm", "dfd"], ["silos-2"])


def test_a_cell_of_another_process_is_left_to_it_and_its_rows_are_taken(cells, monkeypatch):
    """Here the other process is a thread that holds the folder, and writes rows once the other cell is done."""
    monkeypatch.setattr(_queue, "AGAIN", 0.2)
    theirs, ours = cells[0], cells[1:]
    key = {"problem": theirs.cell.problem, "method": theirs.cell.method, "seed": 0}
    rows = [{**key, "nfe": None, "metric": "made", "value": 7.0}]
    held, folder = threading.Event(), RunFolder(theirs.path)

    def other():
        with folder.locked():
            held.set()
            deadline = time.monotonic() + 60
            while not all(cell.finished() for cell in ours) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)  # longer than the queue waits: it asks, and is told to wait, more than once
            folder.write_json("config.json", theirs.record())
            folder.write_json("results.json", {"rows": rows})

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(10)
    shown = []
    outcome = reproduce(recipe("dcfm-cost"), "smoke", cells, 2, lambda all_, running: shown.append(list(running)))
    thread.join()
    assert not outcome.failures and len(outcome.runs) == len(cells)
    assert [row for row in outcome.rows if row["metric"] == "made"] == rows
    assert any(theirs in running for running in shown)  # whoever watches sees that it is being worked on


def test_a_cell_whose_process_ended_without_is_run(cells, monkeypatch):
    monkeypatch.setattr(_queue, "AGAIN", 0.2)
    code = "import sys\nfrom pathlib import Path\nfrom anabranch.runs import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(cells[0].path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"

    def watch(all_, running):
        if all(cell.finished() for cell in cells[1:]):
            process.kill()  # as a crash, in the middle

    outcome = reproduce(recipe("dcfm-cost"), "smoke", cells, 1, watch)
    process.wait()
    assert not outcome.failures and all(cell.finished() for cell in cells)
    assert {row["method"] for row in outcome.rows} == {cell.cell.method for cell in cells}
