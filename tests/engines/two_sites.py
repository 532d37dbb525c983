"""A federation of two sites on loopback, and what tests do with its processes."""

import socket

from anabranch.engines.nvflare import _processes
from anabranch.engines.nvflare._processes import start

SITES = ("hamburg", "porto")


def free_ports():
    with socket.socket() as one, socket.socket() as other:
        one.bind(("localhost", 0))
        other.bind(("localhost", 0))
        return {"port": one.getsockname()[1], "admin_port": other.getsockname()[1]}


def site_folders(folder):
    for name in SITES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "site.toml").touch()
    return {name: folder / name for name in SITES}


def processes(kits):
    return [process for name in kits.participants for process in _processes._processes(kits.kit(name))]


def begin(kits, **settings):
    start(kits, site_folders(kits.folder.parent / "sites"), kits.folder.parent / "runs", **settings)
