"""The server half in an NVFLARE job: the same server half, asking through the sites' published method."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from anabranch.errors import AnabranchError, Paused, QuorumError, UsageError
from anabranch.federation import Carry

RUNS = "ANABRANCH_RUNS"
STATUS = "status.json"
HANDED = "anabranch"  # the folder, beside a job's own files, in which the run is handed over
LOST = 2  # rounds in a row without an answer, after which a site is not asked again in this job
FETCHED = (
    *("config.json", "environment.json", "identity", "metrics.jsonl", "answers.jsonl", "encoder.json"),
    *("experts.checkpoint", "samples.npz", "results.json", STATUS),
)


class Coordinator:
    """Drives one run in its folder on the server, from wherever an earlier job left it.

    `config` is the run's config as JSON in base64, `folder` its folder under ANABRANCH_RUNS, `invited` the sites that
    belong to the run. While one of them is missing, the job ends at the next checkpoint, so that the next job can take
    it in again.
    """

    def __init__(self, config: str, folder: str, invited: list[str]) -> None:
        self.config = config
        self.folder = folder
        self.invited = invited

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """One job's part of the run; how it ended stands in status.json."""
        folder = run_folder(self.folder)
        try:
            state = self._train(folder, {proxy.name: proxy for proxy in collab.clients})
        except AnabranchError as error:
            again = isinstance(error, Paused | QuorumError)
            state = {"state": "again" if again else "failed", "error": type(error).__name__, "sentence": str(error)}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATUS).write_text(json.dumps(state))
        _hand_over(folder, Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())) / HANDED)

    def _train(self, folder: Path, proxies: Mapping[str, Any]) -> dict[str, Any]:
        from anabranch.engines._remote import assemble_remote
        from anabranch.runs import Notes, from_dict, train

        missing = sorted(set(self.invited) - set(proxies))
        with ThreadPoolExecutor(len(proxies), thread_name_prefix="ask") as pool:
            config = from_dict(json.loads(base64.b64decode(self.config)))
            carry = _carrier(proxies, pool, collab.context.is_aborted)
            watch = _Attendance(missing, config.federation.reentry)
            notes = Notes(progress=watch.note, pause=watch.incomplete)
            train(config, folder, notes, assemble_remote(sorted(proxies), carry))
        return {"state": "finished"}


class _Attendance:
    """Who has stopped answering. A site that is lost is asked no more; after a while the job ends at a checkpoint, for
    the next one to let it in again."""

    def __init__(self, missing: list[str], reentry: float) -> None:
        self.missing = missing
        self.reentry = reentry
        self.missed: Counter[str] = Counter()
        self.started = time.monotonic()

    def note(self, progress: Any, federation: Any) -> None:
        self.missed = Counter({name: self.missed[name] + 1 for name in progress.failures})
        lost = {name: why for name, why in progress.failures.items() if self.missed[name] >= LOST}
        if lost and progress.phase in ("flow", "federated"):  # elsewhere its part is its own, and it may come back
            federation.leave_out(lost)

    def incomplete(self, progress: Any, federation: Any) -> bool:
        waited = time.monotonic() - self.started >= self.reentry
        return waited and bool(self.missing or federation.absent)


def _carrier(proxies: Mapping[str, Any], pool: ThreadPoolExecutor, aborted: Callable[[], bool]) -> Carry:
    def ask(name: str, question: bytes, patience: float | None) -> bytes | BaseException:
        try:
            reply: bytes = proxies[name](timeout=patience).answer(question=question)
        except RunAborted:  # the job is over, for everybody
            raise
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            return TimeoutError() if isinstance(cause, TimeoutError) else RuntimeError(type(error).__name__)
        return reply

    def carry(questions: Mapping[str, bytes], patience: float | None) -> dict[str, bytes | BaseException]:
        waiting = {name: pool.submit(ask, name, question, patience) for name, question in questions.items()}
        arrived = {name: future.result() for name, future in waiting.items()}
        if aborted():  # then a call that fails says that the site was late, which it was not
            raise RunAborted("the job was ended")
        return arrived

    return carry


def run_folder(name: str) -> Path:
    """Where the server keeps this run."""
    if RUNS not in os.environ:
        raise UsageError(f"The server does not know where to keep runs: start it with {RUNS} naming a folder.")
    if not name or Path(name).name != name or name.startswith("."):
        raise UsageError("A job may name a run's folder by a plain name only, without a path.")
    return Path(os.environ[RUNS]) / name


def _hand_over(folder: Path, place: Path) -> None:
    """Puts what the run's owner may have beside the job's own files, from where NVFLARE fetches it."""
    place.mkdir(parents=True, exist_ok=True)
    for name in FETCHED:
        if (folder / name).exists():
            shutil.copy2(folder / name, place / name)
    if (folder / "checkpoints").exists():
        shutil.copytree(folder / "checkpoints", place / "checkpoints", dirs_exist_ok=True)
