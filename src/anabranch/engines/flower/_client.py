"""The silo half in Flower's simulation: one query, behind which stand the site's policy and its log.

Flower makes a client anew for every message, and what it keeps between messages are records. A site is more: tensors,
generators, the lock of its log. So there is one worker process for all sites, and this module, which lives as long as
the process, keeps them. They answer one after another: a site that hangs makes the others late.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.engines.flower._drive import SITES, site_folders
from anabranch.errors import AnabranchError
from anabranch.federation import Refused, Site, encode

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

RECORD = "anabranch"
_open: dict[Path, Site] = {}


def client_app() -> ClientApp:
    """What Flower runs for every message: it answers the queries "name" and "answer"."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query("name")(give_name)
    app.query("answer")(answer)
    return app


def give_name(message: Message, context: Context) -> Message:
    """Who this node stands for: Flower numbers its nodes, the site folders give the numbers names."""
    return _reply(message, name=_folder(context).name)


def answer(message: Message, context: Context) -> Message:
    """The encoded answer. A site that cannot be opened says so."""
    try:
        site = _site(_folder(context))
    except AnabranchError as error:
        return _reply(message, answer=encode(Refused(type(error).__name__, str(error))))
    return _reply(message, answer=site.answer(unpack(message, "question")))


def _folder(context: Context) -> Path:
    return site_folders(Path(os.environ[SITES]))[int(context.node_config["partition-id"])]


def _site(folder: Path) -> Site:
    if folder not in _open:
        import torch

        from anabranch.sites import open_site

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        _open[folder] = open_site(folder)
    return _open[folder]


def pack(**content: str | bytes) -> RecordDict:
    """What a message of ours holds: one record."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord(dict(content))})


def unpack(message: Message, key: str) -> Any:
    """One entry of that record."""
    return message.content[RECORD][key]


def _reply(message: Message, **content: str | bytes) -> Message:
    from flwr.app import Message

    return Message(pack(**content), reply_to=message)
