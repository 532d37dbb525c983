"""Things that go wrong in a real federation, with real processes: the server is killed, a site withdraws,
somebody presses Ctrl-C."""

import json
import os
import signal
import threading
import time

import psutil
import pytest
import torch

from anabranch.engines.nvflare import make_trial, site_places, start, stop, train_on_kits
from anabranch.federation import read_log
from anabranch.runs import Notes, RunFolder
from anabranch.sites import withdraw


@pytest.fixture
def trial(bench, tmp_path):
    """A federation of three sites that is up, its config and its folders."""
    config = bench.config("vanilla", "rounds=60", "silos=3", "partition=iid", "groups=[]", "checkpoint_every=10")
    kits = make_trial(tmp_path / "federation", config)
    places = site_places(tmp_path / "federation" / "sites")
    start(kits, places, tmp_path / "runs")
    yield kits, places, config
    stop(kits)


def when(path, number, action):
    """Does something once the run has passed a round."""

    def wait():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            records = RunFolder(path).metrics()
            if records and records[-1]["round"] >= number:
                return action()
            time.sleep(0.05)
        return None

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_server_that_is_killed_and_started_again_ends_with_the_same_parameters(bench, trial, tmp_path):
    kits, places, config = trial
    path, said, killed = tmp_path / "runs" / "run", [], []

    def kill():
        for process in psutil.process_iter(["cmdline"]):
            if str(kits.server) in (process.info["cmdline"] or []):
                process.send_signal(signal.SIGKILL)
                killed.append(process)
        psutil.wait_procs(killed, 20)
        time.sleep(2)  # for the ports to be free
        start(kits, places, tmp_path / "runs", ["server"])

    thread = when(path, 15, kill)
    train_on_kits(config, path, Notes(say=said.append), kits)
    thread.join()
    assert killed and any("goes on from the last checkpoint" in sentence for sentence in said)
    assert [record["round"] for record in RunFolder(path).metrics()] == list(range(1, 61))
    local = bench.local(config, tmp_path / "local")
    there = bench.parameters(path)
    assert all(torch.equal(there[name], local[name]) for name in local)


def test_a_site_that_withdraws_is_left_out_and_the_run_goes_on(trial, tmp_path):
    kits, places, config = trial
    path, said = tmp_path / "runs" / "run", []
    thread = when(path, 15, lambda: withdraw(places["silo-2"]))
    train_on_kits(config, path, Notes(say=said.append), kits)
    thread.join()
    assert not said  # one job did it all
    records = RunFolder(path).metrics()
    assert [record["round"] for record in records] == list(range(1, 61))
    assert records[0]["answered"] == 3 and records[-1]["answered"] == 2
    lines = [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
    assert {line["left_out"] for line in lines if "left_out" in line} == {"silo-2"}
    assert all("has withdrawn" in line["why"] for line in lines if "left_out" in line)
    refused = [entry for entry in read_log(places["silo-2"] / "audit.jsonl") if entry["verdict"] == "refused"]
    assert [entry["kind"] for entry in refused].count("ffm.gradient") == 2  # then it is asked no more


def test_ctrl_c_says_where_the_last_checkpoint_is(trial, tmp_path):
    kits, _, config = trial
    path, there, said = tmp_path / "here" / "run", tmp_path / "runs" / "run", []
    thread = when(there, 15, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_on_kits(config, path, Notes(say=said.append), kits, tmp_path / "runs")
    thread.join()
    assert RunFolder(there).checkpoints() and not RunFolder(path).checkpoints()
    assert said == [
        f"The last checkpoint is with the server, in {there}, and not in {path};"
        f" 'anabranch resume {path}' carries on from it."
    ]
    said.clear()
    stop(kits, say=said.append)
    assert said[-1] == "Waiting for server, silo-1, silo-2, silo-3 to end."
