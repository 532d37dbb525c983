"""The console: who is connected, and one job from submission to its end, whatever becomes of the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from anabranch.engines.nvflare._connection import session
from anabranch.engines.nvflare._kits import Kits
from anabranch.errors import AnabranchError, UsageError

POLL = 1.0  # seconds between looks at a job
GHOST = 5  # looks in a row at which a job that is said to run has no process
FIRST = 15.0  # seconds that the server has to answer at all
AWAY = 300.0  # seconds that the server may be away, for a restart, before the run is given up


class Console:
    """A session of the kits' administrator that is opened again when the server has been away."""

    def __init__(self, kits: Kits, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.kits = kits
        self.say = say
        self._stack = ExitStack()
        self._session: Any = None
        self._met = False

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def present(self) -> list[str]:
        """The sites that are connected now."""
        info = self._ask(lambda session: session.get_system_info())
        return sorted(client.name for client in info.client_info)

    def run(self, job: Path, watch: Callable[[], None]) -> dict[str, Any]:
        """Submits the job folder and waits for its end, calling `watch` meanwhile; NVFLARE's record of the job."""
        number: str = self._ask(lambda session: session.submit_job(str(job)))
        try:
            return self._watch(number, watch)
        except KeyboardInterrupt:
            self._abort(number)
            raise

    def _abort(self, number: str) -> None:
        try:
            self._session.abort_job(number)
        except Exception:  # the session is gone, or there is none
            self.say("The server does not answer and could not be told to end the job; it may go on with it.")

    def _watch(self, number: str, watch: Callable[[], None]) -> dict[str, Any]:
        absent = 0
        while True:
            record: dict[str, Any] = self._ask(lambda session: session.get_job_meta(number))
            watch()
            state = str(record.get("status", ""))
            absent = absent + 1 if state == "RUNNING" and number not in self._running() else 0
            if state.startswith("FINISHED") or absent == GHOST:
                return record
            time.sleep(POLL)

    def _running(self) -> set[str]:
        """The jobs that have a process. A server that was killed goes on calling its jobs of before running."""
        info = self._ask(lambda session: session.get_system_info())
        return {job.job_id for job in info.job_info}

    def fetch(self, record: dict[str, Any], place: Path) -> Path | None:
        """Downloads what the job left on the server; a job that was cut off leaves nothing."""
        if not str(record.get("status", "")).startswith("FINISHED"):
            return None
        return Path(self._ask(lambda session: session.download_job_result(record["job_id"], str(place))))

    def _ask(self, command: Callable[[Any], Any]) -> Any:
        """Runs a command, and again while the server is away. One that was never there is not waited for as long."""
        patience = AWAY if self._met else FIRST
        deadline, told = time.monotonic() + patience, False
        while True:
            try:
                if self._session is None:
                    self._session = self._stack.enter_context(session(self.kits))
                self._met = True
                return command(self._session)
            except UsageError:  # another federation's server, which waiting does not change
                raise
            except Exception as error:
                self._close()
                if time.monotonic() > deadline:
                    raise AnabranchError(
                        f"The server could not be reached for {patience:.0f} s: {error}"
                        " Start it, then continue with 'anabranch resume'."
                    ) from error
                if not told:
                    self.say("The server does not answer; waiting for it. 'anabranch federation start' starts it.")
                    told = True
                time.sleep(2 * POLL)

    def _close(self) -> None:
        with suppress(Exception):  # a session that is gone cannot be closed, and need not be
            self._stack.close()
        self._session = None
