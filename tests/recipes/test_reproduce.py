"""Workers of `reproduce` do not outlive it."""

import subprocess
import sys
import time

import psutil


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
