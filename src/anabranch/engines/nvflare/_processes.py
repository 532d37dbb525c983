"""The processes of a federation on this machine: started from kits, watched, and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from anabranch.engines.nvflare._connection import OTHER_PORTS, greet, listens, session
from anabranch.engines.nvflare._coordinator import RUNS
from anabranch.engines.nvflare._kits import HEARTBEAT, ORGANISATION, SERVER, Kits
from anabranch.engines.nvflare._siteapp import SITE, SITES
from anabranch.errors import AnabranchError, UsageError, unknown
from anabranch.sites import read_site

CONSOLE = "console.log"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Status:
    """Who runs on this machine, by process id; which sites the server knows; its jobs that have not ended."""

    running: Mapping[str, int]
    registered: tuple[str, ...]
    jobs: Mapping[str, str]


def start(
    kits: Kits,
    site_folders: Mapping[str, Path],
    runs: Path,
    only: Sequence[str] | None = None,
    timeout: float = 60.0,
) -> None:
    """Starts the server and the sites (or `only` some of them) in the background, and waits until the sites registered.

    They outlive this process; `stop` ends them. A start that does not succeed in time leaves nothing running.
    """
    names = kits.participants if only is None else list(dict.fromkeys(only))
    _check_start(kits, names, site_folders)
    runs.mkdir(parents=True, exist_ok=True)
    before = {} if SERVER in names else _last_seen(kits)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in sorted(names, key=lambda name: name != SERVER):
            own = {RUNS: runs} if name == SERVER else {SITE: site_folders[name]}
            started[name] = _launch(kits.kit(name), name, {key: str(path.resolve()) for key, path in own.items()})
        _await_registration(kits, started, before, time.monotonic() + timeout)
    except BaseException:
        _end([process for name in started for process in _processes(kits.kit(name))], 5.0)
        raise


def run_site(kit: Path, folder: Path, say: Say = lambda sentence: None) -> NoReturn:
    """Turns this process into the site's: it connects to the server named in the kit, and answers from the folder.

    A server that is not there yet is waited for; one that is not the kit's own is refused.
    """
    kit, folder = kit.resolve(), folder.resolve()
    try:
        facts = json.loads((kit / "startup" / "fed_client.json").read_text())
        name, server = facts["client"]["fqsn"], facts["servers"][0]
        host, _, port = server["service"]["target"].rpartition(":")
        address = (host, int(port))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{kit} is no kit of a site; ask the coordinator for yours.") from error
    held = read_site(folder).name
    if held != name:
        raise UsageError(f"The kit is that of site '{name}', the folder that of '{held}'; they must belong together.")
    if parent := _parent(kit):
        raise UsageError(f"'{name}' runs already, as process {parent}; stop it first.")
    advice = "take the kit that was made together with the server's"
    greet(kit / "startup", address, server["identity"], advice)
    say(f"Site '{name}' connects. NVFLARE's log is {kit / 'log.txt'}; what it answers: anabranch site log {folder}")
    os.chdir(kit)
    os.execve(sys.executable, _command(kit, name), _environment({SITE: str(folder)}))


def status(kits: Kits) -> Status:
    """Who runs, who is registered, which jobs run. A server that does not answer knows nobody."""
    running = {name: parent for name in kits.participants if (parent := _parent(kits.kit(name)))}
    if not listens(kits.host, kits.admin_port):
        return Status(running, (), {})
    with session(kits) as admin:
        registered = sorted(client.name for client in admin.get_connected_client_list())
        return Status(running, tuple(registered), _jobs(admin))


def stop(kits: Kits, timeout: float = 30.0, say: Say = lambda sentence: None) -> list[str]:
    """Ends every process of these kits on this machine, first the jobs, then the participants; returns who did run.

    Jobs are aborted through the server, so that its records say how they ended; processes get a signal to terminate,
    and those that are still there when the time is up are killed. What is waited for is said.
    """
    deadline = time.monotonic() + timeout
    running = [name for name in kits.participants if _processes(kits.kit(name))]
    if _parent(kits.server) and listens(kits.host, kits.admin_port):
        with suppress(AnabranchError):  # a server that does not answer is ended like everything else
            _abort_jobs(kits, timeout / 2, say)
    if running:
        say(f"Waiting for {', '.join(running)} to end.")
    processes = [process for name in kits.participants for process in _processes(kits.kit(name))]
    _end(processes, max(deadline - time.monotonic(), 1.0))
    for name in kits.participants:  # a parent may have started a worker while it was being ended
        _end(_processes(kits.kit(name)), 1.0)
    return running


def _check_start(kits: Kits, names: Sequence[str], site_folders: Mapping[str, Path]) -> None:
    for name in names:
        if name not in kits.participants:
            raise unknown("participant", name, kits.participants)
        if name != SERVER and name not in site_folders:
            raise UsageError(
                f"Site '{name}' has no folder with its data and policy; make one with 'anabranch site init', and say"
                " with --sites where the sites' folders lie."
            )
        if name != SERVER and not (site_folders[name] / "site.toml").is_file():
            raise UsageError(f"{site_folders[name]} is not the folder of a site: it has no site.toml.")
        if parent := _parent(kits.kit(name)):
            raise UsageError(f"'{name}' runs already, as process {parent}; stop it first.")
    if SERVER in names:
        for port in (kits.port, kits.admin_port):
            if listens(kits.host, port):
                raise UsageError(f"Port {port} of {kits.host} is taken by another process; end it, or {OTHER_PORTS}.")
    elif not listens(kits.host, kits.admin_port):
        raise UsageError(f"No server answers at {kits.host}:{kits.admin_port}; start it before the sites.")


def _launch(kit: Path, name: str, own: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (kit / CONSOLE).open("ab") as console:
        process = subprocess.Popen(
            _command(kit, name),
            cwd=kit,
            env=_environment(own),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    # Whoever dies while we live is taken note of at once: a worker goes on as long as its parent's id exists.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def _command(kit: Path, name: str) -> list[str]:
    """One participant, as NVFLARE's own start script would run it, but without the script's waits and restarts."""
    kind = "server" if name == SERVER else "client"
    identity = [] if name == SERVER else [f"uid={name}", f"heart_beat_interval={HEARTBEAT}"]
    command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(kit)]
    command += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *identity]
    return [*command, f"org={ORGANISATION}", "config_folder=config"]


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in (RUNS, SITE, SITES)}
    # Safe path: otherwise the current folder would lie first where the participant looks for modules.
    return environment | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **own}


def _last_seen(kits: Kits) -> dict[str, float]:
    """When the server last heard of each site. One that was ended stays known for a while; its time stands still."""
    with session(kits) as admin:
        return {client.name: client.last_connect_time for client in admin.get_connected_client_list()}


def _await_registration(
    kits: Kits, started: Mapping[str, subprocess.Popen[bytes]], before: Mapping[str, float], deadline: float
) -> None:
    while not listens(kits.host, kits.admin_port):
        _wait(kits, started, [SERVER], deadline)
    with session(kits, max(deadline - time.monotonic(), 1.0)) as admin:
        while True:
            clients = admin.get_connected_client_list()
            present = {client.name for client in clients if client.last_connect_time != before.get(client.name)}
            missing = [name for name in started if name != SERVER and name not in present]
            if not missing:
                return
            _wait(kits, started, missing, deadline)


def _wait(kits: Kits, started: Mapping[str, subprocess.Popen[bytes]], missing: list[str], deadline: float) -> None:
    dead = [name for name, process in started.items() if process.poll() is not None]
    if not dead and time.monotonic() < deadline:
        time.sleep(0.1)
        return
    names = dead or missing
    what = (
        "ended at once"
        if dead
        else "did not register with the server in time"
        if SERVER not in missing
        else "did not come up"
    )
    logs = ", ".join(str(kits.kit(name) / log) for name in names[:1] for log in ("log.txt", CONSOLE))
    raise AnabranchError(f"{', '.join(names)} {what}; everything was stopped again. To find out why, read {logs}.")


def _jobs(admin: Any) -> dict[str, str]:
    """Jobs that run or wait. A server that was killed goes on listing its jobs as running; those are left out."""
    alive = {job.job_id for job in admin.get_system_info().job_info}
    listed = {job["job_id"]: str(job["status"]) for job in admin.list_jobs()}
    return {
        job: state
        for job, state in listed.items()
        if job in alive or (state != "RUNNING" and not state.startswith("FINISHED"))
    }


def _abort_jobs(kits: Kits, timeout: float, say: Say) -> None:
    deadline = time.monotonic() + timeout
    with session(kits, 5.0) as admin:
        try:
            for job in _jobs(admin):
                say(f"Waiting at most {timeout:.0f} s for job {job} to end.")
                admin.abort_job(job)
            while time.monotonic() < deadline and _jobs(admin):
                time.sleep(0.2)
        except Exception as error:
            raise AnabranchError(f"The server did not end its jobs: {error}") from error


def _processes(kit: Path) -> list[Any]:
    """Every process that works in this kit: the participant itself and its workers, one for each job."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        ours = any(part.startswith("nvflare.private.fed.app.") for part in command)
        if ours and str(kit) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _parent(kit: Path) -> int | None:
    """The participant's own process, if it runs."""
    for process in _processes(kit):
        if any(part.endswith(("server_train", "client_train")) for part in process.info["cmdline"]):
            return int(process.pid)
    return None


def _end(processes: Sequence[Any], timeout: float) -> None:
    """Ends processes and all they started: by request, and after `timeout` seconds by force."""
    import psutil

    everyone = dict.fromkeys(processes)
    for process in processes:
        try:
            everyone |= dict.fromkeys(process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    for process in everyone:
        _signal(process, "terminate")
    _, alive = psutil.wait_procs(list(everyone), timeout)
    for process in alive:
        _signal(process, "kill")
    psutil.wait_procs(alive, 5.0)


def _signal(process: Any, way: str) -> None:
    import psutil

    try:
        getattr(process, way)()
    except psutil.NoSuchProcess:
        return
