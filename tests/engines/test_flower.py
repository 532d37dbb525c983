"""Flower's simulation: the same run as in this process, to the bit; what failures do; and that nothing stays behind."""

import ipaddress
import json
import os
import subprocess
import sys
import time

import psutil
import pytest
import torch

from anabranch.engines import _choose, resume_on_its_engine, train_on
from anabranch.engines._trial import write_sites
from anabranch.engines.flower import _client, _drive, _simulation
from anabranch.errors import AnabranchError, UsageError
from anabranch.federation import Refused, RemoteEngine, decode, read_log
from anabranch.runs import Notes, RunFolder

METHODS = ["vanilla", "lot", "got", "sd"]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def book(path):
    return [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]


def simulation(path):
    """The process of the run's simulation, and those of Ray: they may lose their parent, but never their group."""
    group, found = None, []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "anabranch.engines.flower._simulation" in command and str(path) in command:
            group = process.pid
    for process in psutil.process_iter(["cmdline"]):
        try:
            if os.getpgid(process.pid) == group:
                found.append(process)
        except ProcessLookupError:
            pass
    return found


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def places(processes):
    """The addresses that processes listen at or are connected to."""
    seen = [c for p in processes for c in p.net_connections() if c.status in ("LISTEN", "ESTABLISHED", "SYN_SENT")]
    return {ipaddress.ip_address(end.ip) for c in seen for end in (c.laddr, c.raddr) if end}


def is_loopback(place):
    return (getattr(place, "ipv4_mapped", None) or place).is_loopback


class Watch:
    """At one round, looks at the processes of the simulation, and may do something to them."""

    def __init__(self, path, number, deed=lambda processes: None):
        self.path, self.number, self.deed = path, number, deed
        self.processes = []
        self.places = set()

    def __call__(self, progress, federation):
        if progress.round >= self.number and not self.processes:
            self.processes = simulation(self.path)
            self.places = places(self.processes)
            self.deed(self.processes)


needs_flower = pytest.mark.skipif(
    not (_choose.find_spec("flwr") and _choose.find_spec("ray")),
    reason='flwr is not installed; pip install "anabranch[flower]"',
)


@pytest.fixture
def in_a_run(monkeypatch):
    """Messages of Flower can be made in this process, as if it belonged to a run."""
    for name, value in _drive.OFFLINE.items():
        monkeypatch.setenv(name, value)
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@needs_flower
class TestRuns:
    @pytest.mark.parametrize("method", METHODS)
    def test_the_simulation_ends_with_the_parameters_of_one_process(self, bench, tmp_path, method):
        config, path = bench.config(method), tmp_path / "run"
        watch = Watch(path, 5)
        rows = train_on("flower-sim", config, path, Notes(watch))
        assert equal(bench.parameters(path), bench.local(config, tmp_path / "local"))
        assert any(row["metric"] == "w2" and row["value"] > 0 for row in rows)
        for site in (path / "sites").iterdir():
            given = [e["answer"] for e in read_log(site / "audit.jsonl") if e["verdict"] == "answered"]
            assert given and given == [line["answer"] for line in book(path) if line.get("accepted") == site.name]
        assert len(watch.processes) > 3 and not alive(watch.processes)
        assert watch.places and all(map(is_loopback, watch.places))

    def test_with_the_process_that_started_it_everything_ends_and_the_run_can_go_on(self, bench, tmp_path):
        config, path = bench.config("lot", "run.checkpoint_every=5"), tmp_path / "run"
        with RunFolder(path).locked():
            RunFolder(path).begin(config)
        RunFolder(path).write_json(_choose.RECORD, {"engine": "flower-sim", "federation": None})
        program = "import sys, pathlib; from anabranch import engines, runs\n"
        program += "engines.resume_on_its_engine(pathlib.Path(sys.argv[1]), runs.Notes())"
        starter = subprocess.Popen([sys.executable, "-c", program, str(path)])
        deadline = time.monotonic() + 120
        while not RunFolder(path).checkpoints() and time.monotonic() < deadline:
            time.sleep(0.05)
        started = simulation(path)
        starter.kill()
        starter.wait()
        assert started and not psutil.wait_procs(started, 10)[1]
        assert not RunFolder(path).finished
        resume_on_its_engine(path, Notes())
        assert equal(bench.parameters(path), bench.local(config, tmp_path / "local"))

    def test_a_worker_that_dies_is_a_failure_of_the_sites_by_name(self, bench, tmp_path):
        def kill_the_worker(processes):
            [worker] = [p for p in processes if p.cmdline()[0].startswith("ray::ClientAppActor")]
            worker.kill()

        config, path = bench.config("vanilla", "rounds=500"), tmp_path / "run"
        watch = Watch(path, 5, kill_the_worker)
        with pytest.raises(AnabranchError, match="silo-1"):
            train_on("flower-sim", config, path, Notes(watch))
        left_out = {line["left_out"]: line["why"] for line in book(path) if "left_out" in line}
        assert left_out.keys() == {"silo-1", "silo-2"}
        assert all("its client failed, see flower.log" in why for why in left_out.values())
        assert "ActorDied" in (path / "flower.log").read_text()
        assert not alive(watch.processes)


@needs_flower
class TestClient:
    @pytest.fixture
    def ask(self, bench, tmp_path, monkeypatch, in_a_run):
        """Asks the client of a node, as Flower's worker does."""
        from flwr.app import Context, Message, RecordDict

        write_sites(bench.config("vanilla"), tmp_path)
        monkeypatch.setenv(_drive.SITES, str(tmp_path))
        monkeypatch.setattr(_client, "_open", {})

        def ask(node, kind, **content):
            context = Context(1, node, {"partition-id": node, "num-partitions": 2}, RecordDict(), {})
            message = Message(_client.pack(**content), node, f"query.{kind}")
            message.metadata.__dict__["_message_id"] = "1"  # Flower numbers a message when it is sent
            return _client.client_app()(message, context)

        return ask

    def test_nodes_have_the_names_of_the_site_folders(self, ask):
        assert [_client.unpack(ask(node, "name"), "name") for node in (0, 1)] == ["silo-1", "silo-2"]

    def test_a_site_is_opened_once(self, ask):
        for _ in range(2):
            assert isinstance(decode(_client.unpack(ask(0, "answer", question=b"nonsense"), "answer")), Refused)
        assert [folder.name for folder in _client._open] == ["silo-1"]

    def test_a_site_that_cannot_be_opened_says_so(self, ask, tmp_path):
        (tmp_path / "silo-2" / "site.toml").write_text('name = "silo-2"\n[data]\nfile = "nothing.npz"\n')
        reply = decode(_client.unpack(ask(1, "answer", question=b""), "answer"))
        assert isinstance(reply, Refused) and "nothing.npz" in reply.sentence


@needs_flower
@pytest.mark.usefixtures("in_a_run")
class TestCarrier:
    """Without Ray: a grid that lets one site answer, one fail and one be late."""

    class Grid:
        def get_node_ids(self):
            return [30, 10, 20]

        def send_and_receive(self, messages, timeout=None):
            from flwr.app import Error, Message

            for message in messages:
                message.metadata.__dict__["_message_id"] = "1"
                node = message.metadata.dst_node_id
                if message.metadata.message_type == "query.name":
                    yield Message(_client.pack(name=f"site-{node}"), reply_to=message)
                elif node == 10:
                    yield Message(_client.pack(answer=_client.unpack(message, "question")[::-1]), reply_to=message)
                elif node == 20:
                    yield Message(Error(2, "row 7 of patients.csv"), reply_to=message)

    def test_who_is_present_is_asked(self):
        assert _simulation.roll_call(self.Grid(), 3) == {"site-10": 10, "site-20": 20, "site-30": 30}

    def test_a_client_that_does_not_come_up_is_an_error(self):
        with pytest.raises(AnabranchError, match="Of 4 clients, 3 came up"):
            _simulation.roll_call(self.Grid(), 4, patience=0.1)

    def test_every_answer_is_told_from_every_failure(self):
        nodes = _simulation.roll_call(self.Grid(), 3)
        arrived = _simulation.carrier(self.Grid(), nodes)(dict.fromkeys(nodes, b"abc"), 1.0)
        assert arrived["site-10"] == b"cba"
        assert isinstance(arrived["site-30"], TimeoutError)
        with pytest.raises(AnabranchError, match=r"'site-20' could not be asked: its client failed, see flower\.log"):
            RemoteEngine(nodes, lambda questions, patience: {})._accept("site-20", None, arrived["site-20"])
        assert "patients" not in str(arrived["site-20"])


class TestBadInput:
    @pytest.mark.parametrize("missing", ["flwr", "ray"])
    def test_a_missing_extra_is_named(self, bench, tmp_path, monkeypatch, missing):
        monkeypatch.setattr(_choose, "find_spec", lambda name: None if name == missing else name)
        with pytest.raises(UsageError, match=rf"needs {missing}.*pip install \"anabranch\[flower\]\""):
            train_on("flower-sim", bench.config("lot"), tmp_path, Notes())

    def test_a_simulation_that_says_nothing_was_cut_off(self, tmp_path):
        assert "cut off" in _drive._status(tmp_path)["sentence"]
