"""Kits with real processes: what starts, whom the server answers, and what ends. Everything stays on loopback."""

import json
import shutil
import socket
import ssl
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from anabranch.engines.nvflare import _processes
from anabranch.engines.nvflare._connection import session
from anabranch.engines.nvflare._job import SERVER_CLASSES, SITE_CLASSES
from anabranch.engines.nvflare._kits import Kits, provision
from anabranch.engines.nvflare._processes import run_site, start, status, stop
from anabranch.engines.nvflare._session import Console
from anabranch.errors import AnabranchError, UsageError
from tests.engines.two_sites import SITES, begin, free_ports, processes, site_folders

GREETING = (
    b"GET /f3 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation whose server and first site run."""
    kits = provision(tmp_path_factory.mktemp("running") / "federation", SITES, **free_ports())
    try:
        begin(kits, only=["server", "hamburg"])
        yield kits
    finally:
        stop(kits)
        assert not processes(kits)


@pytest.fixture
def launched():
    """Starts participants that are not expected to come far, and ends them."""
    kits = []

    def launch(kit, name):
        kits.append(kit)
        return _processes._launch(kit, name, {})

    yield launch
    for kit in kits:
        _processes._end(_processes._processes(kit), 5.0)


def test_a_start_that_cannot_be_starts_nothing(kits, tmp_path):
    folders = site_folders(tmp_path / "sites")
    with socket.create_server(("localhost", kits.admin_port)), pytest.raises(UsageError, match="federation provision"):
        start(kits, folders, tmp_path / "runs")
    with pytest.raises(UsageError, match="did you mean 'porto'"):
        start(kits, folders, tmp_path / "runs", only=["port"])
    with pytest.raises(UsageError, match="'porto' has no folder"):
        start(kits, {"hamburg": folders["hamburg"]}, tmp_path / "runs")
    with pytest.raises(UsageError, match=r"has no site\.toml"):
        start(kits, {**folders, "porto": tmp_path}, tmp_path / "runs")
    with pytest.raises(UsageError, match="No server answers"):
        start(kits, folders, tmp_path / "runs", only=["porto"])
    assert not processes(kits)
    stop(kits)


def test_a_site_without_certificate_is_named_and_nothing_is_left(tmp_path):
    kits = provision(tmp_path / "federation", SITES, **free_ports())
    for name in ("client.crt", "client.key"):
        (kits.sites["porto"] / "startup" / name).unlink()
    try:
        with pytest.raises(AnabranchError, match=r"^porto did not register .*kits/porto/log\.txt"):
            begin(kits, timeout=7.0)
        assert not processes(kits)
    finally:
        stop(kits)


def test_processes_know_their_folders(running):
    found = status(running)
    assert sorted(found.running) == ["hamburg", "server"]
    assert found.registered == ("hamburg",)
    assert found.jobs == {}
    site = psutil.Process(found.running["hamburg"]).environ()
    server = psutil.Process(found.running["server"]).environ()
    folder = running.folder.parent
    assert site["ANABRANCH_SITE"] == str(folder / "sites" / "hamburg") and "ANABRANCH_RUNS" not in site
    assert server["ANABRANCH_RUNS"] == str(folder / "runs") and "ANABRANCH_SITE" not in server
    assert site["OMP_NUM_THREADS"] == "1"
    with pytest.raises(UsageError, match="runs already"):
        begin(running, only=["hamburg"])


def test_the_server_listens_on_loopback_only(running):
    process = psutil.Process(status(running).running["server"])
    addresses = {one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


def answer(kits: Kits, context: ssl.SSLContext | None) -> bytes:
    """What the server says to a greeting in the language of its sites."""
    with socket.create_connection(("localhost", kits.port), 5.0) as plain:
        try:
            stream = context.wrap_socket(plain, server_hostname="localhost") if context else plain
            stream.sendall(GREETING)
            return stream.recv(100)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_only_certificates_of_this_federation_are_answered(running, kits):
    def context(kit: Path | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(running.server / "startup" / "rootCA.pem"))
        if kit:
            made.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
        return made

    assert answer(running, context(running.sites["hamburg"])).startswith(b"HTTP/1.1 101")
    assert answer(running, context(kits.sites["hamburg"])) == b""
    assert answer(running, context(None)) == b""
    assert answer(running, None) == b""


def test_kits_of_others_never_register(running, kits, launched, tmp_path):
    foreign, borrowed = tmp_path / "foreign", tmp_path / "borrowed"
    shutil.copytree(kits.sites["porto"], foreign)
    settings = foreign / "startup" / "fed_client.json"
    settings.write_text(settings.read_text().replace(str(kits.port), str(running.port)))
    shutil.copytree(running.sites["porto"], borrowed)
    for name in ("client.crt", "client.key"):
        shutil.copy(running.sites["hamburg"] / "startup" / name, borrowed / "startup" / name)
    intruders = [launched(foreign, "porto"), launched(borrowed, "porto")]
    refused = (foreign / "log.txt", "CertificateError"), (running.server / "log.txt", "authenticated as 'hamburg'")
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not all(p.exists() and word in p.read_text() for p, word in refused):
        time.sleep(0.2)
    assert all(word in path.read_text() for path, word in refused)
    assert status(running).registered == ("hamburg",)
    assert all(intruder.poll() is None for intruder in intruders)  # they go on trying, in vain


def write_job(folder, path):
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    (folder / "meta.json").write_text(
        json.dumps({"name": "test", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}})
    )
    controller = {"id": "controller", "path": SERVER_CLASSES[0], "args": {"server_obj_id": "_server"}}
    server = {"format_version": 2, "workflows": [controller], "components": []}
    executor = {"tasks": ["*"], "executor": {"path": SITE_CLASSES[0], "args": {"client_obj_id": "_client"}}}
    client = {"format_version": 2, "executors": [executor], "components": [{"id": "_client", "path": path, "args": {}}]}
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    return folder


def ended(admin, job):
    deadline = time.monotonic() + 30
    while not (meta := admin.get_job_meta(job))["status"].startswith("FINISHED") and time.monotonic() < deadline:
        time.sleep(0.2)
    return meta


def test_sites_refuse_code_that_a_job_brings(running, tmp_path):
    job = write_job(tmp_path / "job", SITE_CLASSES[1])
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "extra.py").write_text("VALUE = 1\n")
    rules = running.server / "local" / "authorization.json"
    kept = rules.read_text()
    try:
        with session(running) as admin:
            meta = ended(admin, admin.submit_job(str(job)))
            assert meta["status"] == "FINISHED:FAILED_TO_RUN"
            assert meta["job_deploy_detail"] == ["server: BYOC not permitted"]
        # A server that would let it pass does not decide for the sites.
        stop(replace(running, sites={}))
        rules.write_text(kept.replace('"byoc": "none"', '"byoc": "any"'))
        begin(running, only=["server"])
        with session(running) as admin:
            deadline = time.monotonic() + 20
            while not admin.get_connected_client_list() and time.monotonic() < deadline:
                time.sleep(0.2)
            meta = ended(admin, admin.submit_job(str(job)))
        assert meta["status"] == "FINISHED:FAILED_TO_RUN"
        assert "hamburg: NVFLARE_ERROR: BYOC not permitted" in meta["job_deploy_detail"]
    finally:
        rules.write_text(kept)


def test_sites_refuse_classes_that_are_not_theirs(running, tmp_path):
    with session(running) as admin:
        job = admin.submit_job(str(write_job(tmp_path / "job", "anabranch.engines.nvflare._siteapp.Path")))
        log = running.sites["hamburg"] / job / "log.txt"
        deadline = time.monotonic() + 20
        while not (log.exists() and "not in allow_list" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert "Component 'anabranch.engines.nvflare._siteapp.Path'" in log.read_text()
        assert ended(admin, job)["status"].startswith("FINISHED")  # later tests count on a quiet server


def test_a_site_that_was_ended_counts_when_it_is_heard_of_anew(kits, monkeypatch):
    times = iter([5.0, 5.0, 6.0])

    class Admin:
        def get_connected_client_list(self):
            return [SimpleNamespace(name="porto", last_connect_time=next(times))]

    monkeypatch.setattr(_processes, "session", lambda *_: nullcontext(Admin()))
    monkeypatch.setattr(_processes, "listens", lambda *_: True)
    process = SimpleNamespace(poll=lambda: None)
    _processes._await_registration(kits, {"porto": process}, {"porto": 5.0}, time.monotonic() + 10)
    assert next(times, None) is None


class TestRunSite:
    def test_a_folder_that_is_no_kit_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="no kit of a site"):
            run_site(tmp_path, tmp_path)

    def test_the_kit_of_another_site_is_refused(self, kits, tmp_path):
        (tmp_path / "site.toml").write_text('name = "porto"\n[data]\nfile = "x.npy"\n')
        with pytest.raises(UsageError, match="kit is that of site 'hamburg', the folder that of 'porto'"):
            run_site(kits.sites["hamburg"], tmp_path)

    def test_the_server_of_another_federation_is_refused(self, running, tmp_path):
        other = provision(
            tmp_path / "other", ["porto"], port=running.port, admin_port=running.admin_port, project="another"
        )
        (tmp_path / "site.toml").write_text('name = "porto"\n[data]\nfile = "x.npy"\n')
        with pytest.raises(UsageError, match=r"is not of this kit's federation .*; take the kit"):
            run_site(other.sites["porto"], tmp_path)
        with pytest.raises(UsageError, match=r"is not of this kit's federation .*; end that one, or make"):
            status(other)
        with Console(other) as console, pytest.raises(UsageError, match="is not of this kit's federation"):
            console.present()

    def test_a_kit_without_its_key_is_refused(self, kits, tmp_path):
        shutil.copytree(kits.sites["porto"], tmp_path / "kit")
        (tmp_path / "kit" / "startup" / "client.key").unlink()
        (tmp_path / "site.toml").write_text('name = "porto"\n[data]\nfile = "x.npy"\n')
        with pytest.raises(UsageError, match="no usable certificate"):
            run_site(tmp_path / "kit", tmp_path)

    def test_it_becomes_the_sites_process(self, kits, tmp_path, monkeypatch):
        (tmp_path / "site.toml").write_text('name = "porto"\n[data]\nfile = "x.npy"\n')
        seen = []
        monkeypatch.setattr(_processes.os, "execve", lambda *words: seen.append(words))
        monkeypatch.chdir(tmp_path)
        run_site(kits.sites["porto"], tmp_path)
        _, command, environment = seen[0]
        assert "uid=porto" in command and environment["ANABRANCH_SITE"] == str(tmp_path)


def test_stop_ends_everything_and_can_be_repeated(running):
    _processes._end(_processes._processes(running.sites["hamburg"]), 5.0)
    begin(running, only=["porto", "hamburg"])
    assert status(running).registered == SITES
    said = []
    assert stop(running, say=said.append) == ["server", *SITES]
    assert said == ["Waiting for server, hamburg, porto to end."]
    assert not processes(running)
    assert status(running).running == {} and status(running).registered == ()
    assert stop(running, say=said.append) == [] and len(said) == 1
