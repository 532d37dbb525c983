"""The process of one simulation: Flower and Ray around the server half, in a run's folder.

Started as `python -m anabranch.engines.flower._simulation RUN PLACE`; `PLACE` is a short path for Ray's own files. It
ends with the run, or when whoever started it closes its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from anabranch.engines._remote import assemble_remote
from anabranch.engines.flower._client import ANSWER, NAME, RECORD, app, site_folders
from anabranch.errors import AnabranchError
from anabranch.federation import Carry
from anabranch.runs import RunFolder, train

STATUS = "status.json"
LOG = "flower.log"  # what Flower and Ray printed, in the run folder
START = 120.0  # seconds for Ray's worker to come up
STORE = 100 * 2**20  # bytes of shared memory for messages on their way; larger ones go by way of the disk


def simulate(path: Path, place: Path) -> None:
    """Trains in the folder; how it ended stands in status.json."""
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, context: Any) -> None:
        state = {"state": "finished", "sentence": ""}
        try:
            nodes = roll_call(grid, len(site_folders()))
            train(RunFolder(path).config(), path, None, assemble_remote(sorted(nodes), carrier(grid, nodes)))
        except AnabranchError as error:
            state = {"state": "failed", "sentence": str(error)}
        (path / STATUS).write_text(json.dumps(state))

    # One processor for Ray, and one for a client, make exactly one worker: the process that keeps the sites.
    ray = {"num_cpus": 1, "object_store_memory": STORE, "_temp_dir": str(place), "_node_ip_address": "127.0.0.1"}
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server, app, len(site_folders()), backend_config={"init_args": ray, "client_resources": resources})


def roll_call(grid: Grid, count: int, patience: float = START) -> dict[str, int]:
    """The node of every site, by the site's name; waits for all of them."""
    deadline = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    messages = [Message(RecordDict(), node, NAME) for node in nodes]
    replies = [reply for reply in grid.send_and_receive(messages, timeout=patience) if not reply.has_error()]
    if len(replies) < count:
        raise AnabranchError(f"Of {count} clients, {len(replies)} came up; {LOG} in the run folder says why.")
    return {reply.content[RECORD]["name"]: reply.metadata.src_node_id for reply in replies}


def carrier(grid: Grid, nodes: Mapping[str, int]) -> Carry:
    """Carries questions as Flower's messages. A reply that never came is late; one with an error is a failure."""
    names = {node: name for name, node in nodes.items()}

    def carry(questions: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        messages = [
            Message(RecordDict({RECORD: ConfigRecord({"question": question})}), nodes[name], ANSWER)
            for name, question in sorted(questions.items())
        ]
        arrived: dict[str, bytes | BaseException] = {name: TimeoutError() for name in questions}
        for reply in grid.send_and_receive(messages, timeout=patience):
            # An error's text may quote a site's data: it stays in the log.
            failed = RuntimeError(f"its client failed, see {LOG}") if reply.has_error() else None
            arrived[names[reply.metadata.src_node_id]] = failed or reply.content[RECORD]["answer"]
        return arrived

    return carry


def _end_with_input() -> None:
    """Ends the process when the one that started it is gone, and Ray with it."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        simulate(Path(sys.argv[1]), Path(sys.argv[2]))
    except BaseException:
        # The server half still waits for answers that nobody will give.
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
