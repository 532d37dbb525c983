"""A site's own record of every question it met and every answer it gave."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from anabranch.errors import DataError
from anabranch.federation._message import Message, tensors_of

_START = "0" * 64


def digest(data: bytes) -> str:
    """SHA-256 of bytes that crossed the wire."""
    return hashlib.sha256(data).hexdigest()


def shapes_of(message: Message) -> dict[str, str]:
    """What tensors a message holds, as `float32 (64, 3)`."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
        for name, tensor in tensors_of(message).items()
    }


class AuditLog:
    """JSON lines that are only ever added to. Each carries the digest of the one before, so that a change shows.

    A line is on disk before the answer leaves: what the log does not hold was not sent. One process writes at a time;
    another waits `patience` seconds for it to end.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held = self._hold(patience)
        self._mend()
        *_, last = ["", *_lines(path)]
        self._chain = digest(last.encode()) if last else _START

    def add(self, **entry: Any) -> None:
        """One more line, flushed to the disk."""
        with self._lock:
            line = json.dumps(
                {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry, "after": self._chain}
            )
            self._held.write(line + "\n")
            self._held.flush()
            os.fsync(self._held.fileno())
            self._chain = digest(line.encode())

    def close(self) -> None:
        """Lets another process write."""
        self._held.close()

    def answered(self, run: str, kind: str) -> int:
        """How many answers of a kind were given in a run, in whichever process."""
        given = (e for e in read_log(self.path) if e.get("verdict") == "answered")
        return sum(e.get("answers", 1) for e in given if (e["run"], e["kind"]) == (run, kind))

    def _hold(self, patience: float) -> TextIO:
        file = self.path.open("a")
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError as error:
                if time.monotonic() > deadline:
                    file.close()
                    raise DataError(f"Another process answers for {self.path.parent}; end it first.") from error
                time.sleep(0.1)

    def _mend(self) -> None:
        """A crash in the middle of a line leaves half of it; the answer it belonged to never left."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            with self.path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry; a DataError names the first line that was changed, removed or inserted."""
    chain = _START
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = json.loads(line)
            after = entry.pop("after")
        except (ValueError, KeyError, AttributeError) as error:
            raise DataError(f"Line {number} of {path} is no entry of an audit log.") from error
        if after != chain:
            raise DataError(f"Line {number} of {path} does not follow the line before it: the log was changed.")
        chain = digest(line.encode())
        yield entry


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open() as file:
            for line in file:
                yield line.removesuffix("\n")
