"""The job: names of classes that every participant has installed, and settings. It carries no code.

NVFLARE's own job builders ship the source files of the classes that a job names. Sites would then run what a job brings
along; so the three files of a job are written here instead. A site that allows the classes in `SITE_CLASSES`, and
denies NVFLARE's right "byoc", runs nothing but its installed package. The list names classes, never packages: NVFLARE
calls whatever a path leads to, and a module's path leads to everything that the module imports.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anabranch.runs import Config

SITE_CLASSES = ("nvflare.collab.runtime.executor.CollabExecutor", "anabranch.engines.nvflare._siteapp.SiteApp")
SERVER_CLASSES = (
    "nvflare.collab.runtime.controller.CollabController",
    "anabranch.engines.nvflare._coordinator.Coordinator",
)
START = 120  # seconds for all sites to enter the job


def write_job(folder: Path, config: Config, name: str, sites: Sequence[str]) -> Path:
    """Writes the job of one run: `name` is its folder on the server; of the `sites`, a quorum must be there."""
    # NVFLARE takes braces in a setting for names of variables: the config travels without any.
    packed = base64.b64encode(json.dumps(config.to_dict()).encode()).decode()
    coordinator = {"config": packed, "folder": name, "invited": sorted(sites)}
    meta = {
        "name": "anabranch",
        "resource_spec": {},
        "min_clients": config.federation.quorum,
        "deploy_map": {"app": ["server", *sorted(sites)]},
    }
    _write(folder / "meta.json", meta)
    _write(folder / "app" / "config" / "config_fed_server.json", _server(coordinator))
    _write(folder / "app" / "config" / "config_fed_client.json", _client())
    return folder


def _server(coordinator: dict[str, Any]) -> dict[str, Any]:
    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.5},  # seconds between two looks of a site that is about to enter
        "workflows": [
            {
                "id": "controller",
                "path": SERVER_CLASSES[0],
                "args": {"server_obj_id": "_server", "collab_obj_ids": [], "props": {}, "sync_task_timeout": START},
            }
        ],
        "components": [
            {
                "id": "_server",
                "path": SERVER_CLASSES[1],
                "args": coordinator,
            }
        ],
    }


def _client() -> dict[str, Any]:
    return {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {
                    "path": SITE_CLASSES[0],
                    "args": {"client_obj_id": "_client", "collab_obj_ids": [], "props": {}},
                },
            }
        ],
        "components": [{"id": "_client", "path": SITE_CLASSES[1], "args": {}}],
        "task_data_filters": [],
        "task_result_filters": [],
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))
