"""The silo half in Flower's simulation: one query, behind which stand the site's policy and its log.

Flower makes a client anew for every message, and what it keeps between messages are records. A site is more: tensors,
generators, the lock of its log. So there is one worker process for all sites, and this module, which lives as long as
the process, keeps them. They answer one after another.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from anabranch.errors import AnabranchError
from anabranch.federation import Refused, Site, encode

SITES = "ANABRANCH_SITES"
NAME, ANSWER = "query.name", "query.answer"
RECORD = "anabranch"

app = ClientApp()
_open: dict[str, Site] = {}


@app.query("name")  # type: ignore[untyped-decorator]
def name(message: Message, context: Context) -> Message:
    """Who this node stands for: Flower numbers its nodes, the site folders give the numbers names."""
    return _reply(message, {"name": _folder(context).name})


@app.query("answer")  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """The encoded answer. A site that cannot be opened says so."""
    try:
        site = _site(_folder(context))
    except AnabranchError as error:
        return _reply(message, {"answer": encode(Refused(type(error).__name__, str(error)))})
    return _reply(message, {"answer": site.answer(message.content[RECORD]["question"])})


def site_folders() -> list[Path]:
    """The site folders of this machine, in the order of Flower's nodes."""
    return sorted(place for place in Path(os.environ[SITES]).iterdir() if (place / "site.toml").exists())


def _folder(context: Context) -> Path:
    return site_folders()[int(context.node_config["partition-id"])]


def _site(folder: Path) -> Site:
    if folder.name not in _open:
        import torch

        from anabranch.sites import open_site

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        _open[folder.name] = open_site(folder)
    return _open[folder.name]


def _reply(message: Message, content: dict[str, str | bytes]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(content)}), reply_to=message)
