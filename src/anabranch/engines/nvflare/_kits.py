"""Kits: what NVFLARE gives each participant (its name, its key, its certificate), and the processes started from them.

A kit is a folder. `provision` makes one for the server, one for each site and one for whoever submits jobs; they meet
over mutual TLS. Two rules are written into every site's kit, so that a site runs its own installed package and nothing
else: `class_allow_list` names the classes that a job may build, and the right "byoc" (bring your own code) is denied.
Sites also keep their logs to themselves; NVFLARE would send the errors, with their tracebacks, to the server.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.engines.nvflare._coordinator import RUNS
from anabranch.engines.nvflare._job import SERVER_CLASSES, SITE_CLASSES
from anabranch.engines.nvflare._siteapp import SITE, SITES
from anabranch.errors import AnabranchError, UsageError, unknown

SERVER, ADMIN = "server", "admin"
ORGANISATION = "anabranch"
RECORD = "kits.json"
CONSOLE = "console.log"
HEARTBEAT, SILENCE = 5, 30  # seconds between a site's signs of life, and without one until the server forgets it
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# What the owner of a run may do. At a site, that is to send it jobs, end them, and see whether they run.
AT_SITE = {
    **dict.fromkeys(("submit_job", "manage_job", "view"), "any"),
    **dict.fromkeys(("clone_job", "download_job", "operate", "shell_commands"), "none"),
    **dict.fromkeys(("byoc", "server-predeployed-flwr"), "none"),
}
AT_SERVER = {**AT_SITE, **dict.fromkeys(("download_job", "operate"), "any")}


@dataclass(frozen=True)
class Kits:
    """The kits of one federation. Its server listens for sites at `port`, and for `user` at `admin_port`."""

    folder: Path
    server: Path
    sites: Mapping[str, Path]
    admin: Path
    user: str
    host: str
    port: int
    admin_port: int

    def kit(self, name: str) -> Path:
        """The folder of a participant that runs as a process: a site, or 'server'."""
        return self.server if name == SERVER else self.sites[name]

    @property
    def participants(self) -> list[str]:
        """Who runs as a process: the server first."""
        return [SERVER, *sorted(self.sites)]


@dataclass(frozen=True)
class Status:
    """Who runs on this machine, by process id; which sites the server knows; its jobs that have not ended."""

    running: Mapping[str, int]
    registered: tuple[str, ...]
    jobs: Mapping[str, str]


def provision(
    folder: Path,
    sites: Sequence[str],
    server: str = "localhost",
    port: int = 8002,
    admin_port: int = 8003,
    admin: str = "admin@anabranch.local",
    project: str = "anabranch",
) -> Kits:
    """Makes the kits of a new federation in `folder`/kits. What signs certificates stays in `folder`/authority."""
    _check_names(sites, server, admin, project)
    _check_ports(port, admin_port)
    folder = _check_folder(folder)
    folder.mkdir(parents=True, mode=0o700)
    try:
        description = _project(sites, server, port, admin_port, admin, project)
        (folder / "project.yml").write_text(json.dumps(description, indent=2) + "\n")
        built = _build(folder / "authority", description)
        shutil.move(built, folder / "kits")
        (folder / "kits" / server).rename(folder / "kits" / SERVER)
        (folder / "kits" / admin).rename(folder / "kits" / ADMIN)
        for kit in (folder / "kits").iterdir():
            kit.chmod(0o700)
            if kit.name != ADMIN:
                _write_policy(kit, *((SERVER_CLASSES, AT_SERVER) if kit.name == SERVER else (SITE_CLASSES, AT_SITE)))
        record = {"sites": sorted(sites), "user": admin, "host": server, "port": port, "admin_port": admin_port}
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return read_kits(folder)


def read_kits(folder: Path) -> Kits:
    """The kits that `provision` made in the folder."""
    folder = folder.resolve()
    try:
        record = json.loads((folder / RECORD).read_text())
        kits = folder / "kits"
        return Kits(
            folder,
            kits / SERVER,
            {name: kits / name for name in record["sites"]},
            kits / ADMIN,
            *(record[key] for key in ("user", "host", "port", "admin_port")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} holds no kits; provision a federation there first, or name its folder.") from error


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


def status(kits: Kits) -> Status:
    """Who runs, who is registered, which jobs run. A server that does not answer knows nobody."""
    running = {name: parent for name in kits.participants if (parent := _parent(kits.kit(name)))}
    if not _listens(kits.host, kits.admin_port):
        return Status(running, (), {})
    with session(kits) as admin:
        registered = sorted(client.name for client in admin.get_connected_client_list())
        return Status(running, tuple(registered), _jobs(admin))


def stop(kits: Kits, timeout: float = 30.0) -> None:
    """Ends every process of these kits on this machine: first the jobs, then the participants. None need run.

    Jobs are aborted through the server, so that its records say how they ended; processes get a signal to terminate,
    and those that are still there when the time is up are killed.
    """
    deadline = time.monotonic() + timeout
    if _parent(kits.server) and _listens(kits.host, kits.admin_port):
        with suppress(AnabranchError):  # a server that does not answer is ended like everything else
            _abort_jobs(kits, time.monotonic() + timeout / 2)
    processes = [process for name in kits.participants for process in _processes(kits.kit(name))]
    _end(processes, max(deadline - time.monotonic(), 1.0))
    for name in kits.participants:  # a parent may have started a worker while it was being ended
        _end(_processes(kits.kit(name)), 1.0)


@contextmanager
def session(kits: Kits, timeout: float = 10.0) -> Iterator[Any]:
    """A connection to the server in the name of the kits' user: NVFLARE's `Session`, closed at the end."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with redirect_stdout(io.StringIO()):
            admin = new_secure_session(kits.user, str(kits.admin), timeout=timeout, auto_login_max_tries=1)
    except Exception as error:
        raise AnabranchError(
            f"The server at {kits.host}:{kits.admin_port} does not answer {kits.user} ({error}); "
            f"is it running? Its log is {kits.server / 'log.txt'}."
        ) from error
    try:
        yield admin
    finally:
        admin.close()


def _check_names(sites: Sequence[str], server: str, admin: str, project: str) -> None:
    if not sites:
        raise UsageError("A federation needs sites; give at least one name.")
    for name in [*sites, project]:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"'{name}' cannot be a participant's name; use at most 63 letters, digits, '-' and '_', "
                "beginning with a letter or digit."
            )
    taken = {SERVER, ADMIN, server.lower()}
    for name in sites:
        if name.lower() in taken:
            raise UsageError(f"The site's name '{name}' is taken; every participant needs a name of its own.")
        taken.add(name.lower())
    if not HOST.fullmatch(server) or len(server) > 63:
        raise UsageError(f"'{server}' is not a host's name; sites must find the server under it.")
    if not EMAIL.fullmatch(admin) or len(admin) > 64:
        raise UsageError(f"'{admin}' is not an address such as admin@example.org, which NVFLARE needs for its users.")


def _check_ports(port: int, admin_port: int) -> None:
    for number in (port, admin_port):
        if not 0 < number < 65536:
            raise UsageError(f"{number} is not a port; give a number between 1 and 65535.")
    if port == admin_port:
        raise UsageError(f"Port {port} cannot serve both the sites and the administrator; give two ports.")


def _check_folder(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.exists():
        raise UsageError(f"{folder} exists already; certificates are made once, so choose a new folder.")
    if shlex.split(str(folder), comments=True) != [str(folder)]:  # NVFLARE puts the path into a command line
        raise UsageError(f"NVFLARE cannot run in '{folder}'; choose a path without spaces, quotes, '#' or backslashes.")
    return folder


def _project(sites: Sequence[str], server: str, port: int, admin_port: int, admin: str, project: str) -> dict[str, Any]:
    """NVFLARE's description of a federation."""
    everyone: list[dict[str, Any]] = [
        {"name": server, "type": "server", "fed_learn_port": port, "admin_port": admin_port},
        *({"name": name, "type": "client"} for name in sorted(sites)),
        {"name": admin, "type": "admin", "role": "project_admin"},
    ]
    builders = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")
    arguments: dict[str, dict[str, Any]] = {
        "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
        "static_file.StaticFileBuilder": {"config_folder": "config"},
    }
    return {
        "api_version": 3,
        "name": project,
        "description": f"{len(sites)} sites and a server",
        "participants": [{**one, "org": ORGANISATION} for one in everyone],
        "builders": [{"path": f"nvflare.lighter.impl.{one}", "args": arguments.get(one, {})} for one in builders],
    }


def _build(authority: Path, description: dict[str, Any]) -> Path:
    """Has NVFLARE make keys, certificates and kits; returns the folder that holds the kits."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    description = json.loads(json.dumps(description))  # NVFLARE takes its description apart
    builders, project = prepare_builders(description), prepare_project(description)
    with redirect_stdout(io.StringIO()):
        made = Provisioner(str(authority), builders).provision(project)
    if made.get("build_error"):
        raise AnabranchError(f"NVFLARE could not make the kits: {'; '.join(made.get('__errors__', []))}")
    for path in [authority, *authority.rglob("*")]:
        if "prod_00" not in path.parts:
            path.chmod(0o700 if path.is_dir() else 0o600)  # the key that signs everybody's certificates
    return Path(made["current_prod_dir"])


def _write_policy(kit: Path, classes: Sequence[str], rights: Mapping[str, str]) -> None:
    """Puts our settings in the place of NVFLARE's, which then has none to fall back on."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(classes)
    resources["class_list_enforcement_mode"] = "enforce"
    resources["allow_log_streaming"] = False
    streaming = ("site_log_streamer", "log_receiver")
    resources["components"] = [one for one in resources["components"] if one["id"] not in streaming]
    for server in resources.get("servers", []):
        server["heart_beat_timeout"] = SILENCE
    # By default, all servers of a machine would keep their jobs in one folder.
    text = json.dumps(resources, indent=2).replace("/tmp/nvflare/", f"{kit}/storage/")
    permissions = {"format_version": "1.0", "permissions": {"project_admin": dict(rights)}}
    logging = json.loads((local / "log_config.json.default").read_text())
    logging["loggers"]["root"]["handlers"].remove("consoleHandler")  # log.txt holds the same, and rotates
    _replace(local / "resources.json", text)
    _replace(local / "authorization.json", json.dumps(permissions, indent=2))
    _replace(local / "log_config.json", json.dumps(logging, indent=2))


def _replace(path: Path, text: str) -> None:
    path.write_text(text + "\n")
    path.with_name(path.name + ".default").unlink()


def _check_start(kits: Kits, names: Sequence[str], site_folders: Mapping[str, Path]) -> None:
    for name in names:
        if name not in kits.participants:
            raise unknown("participant", name, kits.participants)
        if name != SERVER and name not in site_folders:
            raise UsageError(f"Site '{name}' has no folder with its data and policy; name one.")
        if name != SERVER and not (site_folders[name] / "site.toml").is_file():
            raise UsageError(f"{site_folders[name]} is not the folder of a site: it has no site.toml.")
        if parent := _parent(kits.kit(name)):
            raise UsageError(f"'{name}' runs already, as process {parent}; stop it first.")
    if SERVER in names:
        for port in (kits.port, kits.admin_port):
            if _listens(kits.host, port):
                raise UsageError(f"Port {port} of {kits.host} is taken by another process; end it, or use other ports.")
    elif not _listens(kits.host, kits.admin_port):
        raise UsageError(f"No server answers at {kits.host}:{kits.admin_port}; start it before the sites.")


def _launch(kit: Path, name: str, own: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """One participant, as NVFLARE's own start script would run it, but without the script's waits and restarts."""
    kind = "server" if name == SERVER else "client"
    identity = [] if name == SERVER else [f"uid={name}", f"heart_beat_interval={HEARTBEAT}"]
    command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(kit)]
    command += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *identity]
    command += [f"org={ORGANISATION}", "config_folder=config"]
    environment = {key: value for key, value in os.environ.items() if key not in (RUNS, SITE, SITES)}
    # Safe path: otherwise the current folder would lie first where the participant looks for modules.
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **own}
    with (kit / CONSOLE).open("ab") as console:
        process = subprocess.Popen(
            command,
            cwd=kit,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    # Whoever dies while we live is taken note of at once: a worker goes on as long as its parent's id exists.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def _last_seen(kits: Kits) -> dict[str, float]:
    """When the server last heard of each site. One that was ended stays known for a while; its time stands still."""
    with session(kits) as admin:
        return {client.name: client.last_connect_time for client in admin.get_connected_client_list()}


def _await_registration(
    kits: Kits, started: Mapping[str, subprocess.Popen[bytes]], before: Mapping[str, float], deadline: float
) -> None:
    while not _listens(kits.host, kits.admin_port):
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


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError:
        return False
    return True


def _jobs(admin: Any) -> dict[str, str]:
    """Jobs that run or wait. A server that was killed goes on listing its jobs as running; those are left out."""
    alive = {job.job_id for job in admin.get_system_info().job_info}
    listed = {job["job_id"]: str(job["status"]) for job in admin.list_jobs()}
    return {
        job: state
        for job, state in listed.items()
        if job in alive or (state != "RUNNING" and not state.startswith("FINISHED"))
    }


def _abort_jobs(kits: Kits, deadline: float) -> None:
    with session(kits, 5.0) as admin:
        try:
            for job in _jobs(admin):
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
