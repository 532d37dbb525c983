"""NVFLARE: processes, certificates and connections come from it, questions and answers are ours.

A job names classes of this package and carries no code. Importing the names below needs the extra `nvflare`; sites'
processes import `_siteapp` alone.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "_drive": ("train_in_simulator", "train_on_kits"),
    "_kits": ("Kits", "provision", "read_kits"),
    "_processes": ("run_site", "start", "status", "stop"),
    "_trial": ("make_trial", "on_own_kits", "site_places"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Imports on first use: a site's process must not load what only a coordinator needs."""
    if name not in _HOME:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
