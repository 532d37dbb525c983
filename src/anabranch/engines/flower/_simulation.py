"""The process of one simulation: Flower and Ray around the server half, in a run's folder.

Started as `python -m anabranch.engines.flower._simulation RUN PLACE`; `PLACE` is a short path for Ray's own files. It
ends with the run, or when whoever started it closes its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.engines._remote import assemble_remote
from anabranch.engines.flower._client import client_app, pack, unpack
from anabranch.engines.flower._drive import LOG, SITES, STATUS, site_folders
from anabranch.errors import AnabranchError
from anabranch.federation import Carry, write_atomically
from anabranch.runs import RunFolder, train

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

START = 120.0  # seconds for Ray's worker to come up
STORE = 100 * 2**20  # bytes of shared memory for messages on their way; larger ones go by way of the disk


def simulate(path: Path, place: Path) -> None:
    """Trains in the folder; how it ended stands in status.json, which is written last."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    count, server = len(site_folders(Path(os.environ[SITES]))), ServerApp()

    def serve(grid: Grid, context: Context) -> None:
        state = {"state": "finished", "sentence": ""}
        try:
            nodes = roll_call(grid, count)
            train(RunFolder(path).config(), path, None, assemble_remote(sorted(nodes), carrier(grid, nodes)))
        except AnabranchError as error:
            state = {"state": "failed", "sentence": str(error)}
        write_atomically(path / STATUS, json.dumps(state).encode())

    server.main()(serve)
    # One processor for Ray, and one for a client, make exactly one worker: the process that keeps the sites.
    ray: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE, "_temp_dir": str(place)}
    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server, client_app(), count, backend_config={"init_args": ray, "client_resources": resources})


def roll_call(grid: Grid, count: int, patience: float = START) -> dict[str, int]:
    """The node of every site, by the site's name; waits for all of them."""
    from flwr.app import Message, RecordDict

    deadline = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    messages = [Message(RecordDict(), node, "query.name") for node in nodes]
    replies = [reply for reply in grid.send_and_receive(messages, timeout=patience) if not reply.has_error()]
    if len(replies) < count:
        raise AnabranchError(f"Of {count} clients, {len(replies)} came up; {LOG} in the run folder says why.")
    return {unpack(reply, "name"): reply.metadata.src_node_id for reply in replies}


def carrier(grid: Grid, nodes: Mapping[str, int]) -> Carry:
    """Carries questions as Flower's messages. A reply that never came is late; one with an error is a failure."""
    from flwr.app import Message

    names = {node: name for name, node in nodes.items()}

    def carry(questions: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        messages = [
            Message(pack(question=question), nodes[name], "query.answer")
            for name, question in sorted(questions.items())
        ]
        arrived: dict[str, bytes | BaseException] = {name: TimeoutError() for name in questions}
        for reply in grid.send_and_receive(messages, timeout=patience):
            # An error's text may quote a site's data: it stays in the log.
            failed = RuntimeError(f"its client failed, see {LOG}") if reply.has_error() else None
            arrived[names[reply.metadata.src_node_id]] = failed or unpack(reply, "answer")
        return arrived

    return carry


def _end_with_input(place: Path) -> None:
    """Ends this process, and Ray's in its group, when the one that started it is gone."""
    while os.read(0, 1):
        pass
    shutil.rmtree(place, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    run, place = map(Path, sys.argv[1:])
    threading.Thread(target=_end_with_input, args=(place,), daemon=True).start()
    try:
        simulate(run, place)
    except BaseException:
        # The server half still waits for answers that nobody will give.
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
