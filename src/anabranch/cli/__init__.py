"""What can I type? Thin verbs over the library."""

import ctypes
import os
import sys
import threading

# Small products gain nothing from a BLAS's own threads, and they fight with torch's and with other runs.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# By glibc's numbers: M_MMAP_THRESHOLD (its largest), M_TRIM_THRESHOLD, M_TOP_PAD.
_KEPT = {-3: 32 * 2**20, -1: 256 * 2**20, -2: 64 * 2**20}


def main() -> None:
    """The `anabranch` command."""
    _keep_memory()
    from anabranch.cli._verbs import app

    try:
        app()
    finally:
        _leave_threads_behind(sys.exc_info()[1])


def _leave_threads_behind(end: BaseException | None) -> None:
    """Ends at once where an engine's threads are still there: a session whose server is gone would wait for ever."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    if others and isinstance(end, SystemExit) and isinstance(end.code, int | None):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)


def _keep_memory() -> None:
    """Has glibc keep freed memory: handed back, every large temporary of a step would be mapped and cleared anew.

    A training step of 8 192 rows becomes a quarter faster. Elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, size in _KEPT.items():
            mallopt(option, size)


__all__ = ["main"]
