"""Kits: what NVFLARE gives each participant (its name, its key, its certificate), and the processes started from them.

A kit is a folder. `provision` makes one for the server, one for each site and one for whoever submits jobs; they meet
over mutual TLS. Two rules are written into every site's kit, so that a site runs its own installed package and nothing
else: `class_allow_list` names the classes that a job may build, and the right "byoc" (bring your own code) is denied.
Sites also keep their logs to themselves; NVFLARE would send the errors, with their tracebacks, to the server.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.engines.nvflare._job import SERVER_CLASSES, SITE_CLASSES
from anabranch.errors import AnabranchError, UsageError
from anabranch.sites import TAKEN, check_name

SERVER, ADMIN = TAKEN
ORGANISATION = "anabranch"
RECORD = "kits.json"
HEARTBEAT, SILENCE = 5, 30  # seconds between a site's signs of life, and without one until the server forgets it
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
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


def _check_names(sites: Sequence[str], server: str, admin: str, project: str) -> None:
    if not sites:
        raise UsageError("A federation needs sites; give at least one name.")
    for name in [*sites, project]:
        check_name(name)
    taken = {server.lower()}
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
