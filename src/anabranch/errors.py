"""Errors are sentences: what was given, why it cannot be, what to do instead."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

GOES_ON = "'anabranch resume', or the same 'anabranch reproduce',"  # what a person types to go on with a run
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # torch's own words


class AnabranchError(Exception):
    """Anything this package refuses or fails at; the message is meant for people. Exit code 1."""


class UsageError(AnabranchError, ValueError):
    """What was asked for cannot be: an unknown name, a number out of range. Exit code 2."""


class DataError(AnabranchError, ValueError):
    """The data cannot be used: empty, not finite, of the wrong shape, unreadable."""


class MessageError(AnabranchError):
    """A message was refused on arrival: wrong kind, shape, dtype, size, or not finite."""


class RefusedError(AnabranchError):
    """A silo protects itself and does not answer this question."""


class QuorumError(AnabranchError):
    """Too few silos answered for the round to count."""


class NotFiniteError(MessageError):
    """A message was refused on arrival because it holds numbers that are not finite."""


class UnsoundError(QuorumError):
    """Too few silos are left without those whose numbers were not finite; `failures` says who these are."""

    ADVICE = (
        "Mended data, another rate, a clip of the gradient or more precise numbers make another run, in a folder of"
        f" its own; {GOES_ON} goes on from the last checkpoint, with all of these as they were."
    )
    failures: dict[str, str] = {}  # noqa: RUF012


class ExhaustedError(AnabranchError):
    """Memory did not suffice; the message says what to lower."""


class RecordingError(AnabranchError):
    """A GPU could not record what it was to repeat, and is left in the middle of it: the program should end."""


class CheckpointError(AnabranchError):
    """A checkpoint is missing, corrupted or belongs to something else."""


class Paused(AnabranchError):
    """A run stopped at a checkpoint because it was asked to, and can go on from there."""


class RunFolderError(AnabranchError):
    """A run folder cannot be written, is in use, or belongs to another run."""

    @classmethod
    def unwritten(cls, path: Path, error: OSError) -> RunFolderError:
        """What the disk refused, and what helps: room where it is full, another place otherwise."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space, or choose another place" if full else "Choose another place"
        return cls(f"{path} could not be written ({error.strerror or error}). {advice} with --out.")


class BusyError(RunFolderError):
    """Another process is at work in a run folder."""


def out_of_memory(error: BaseException) -> bool:
    """Whether the error, of whichever library, says that memory ran out."""
    if isinstance(error, MemoryError | ExhaustedError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def brief(error: BaseException, most: int = 300) -> str:
    """What an error is and says, on one line for a log; libraries write pages."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]


@contextmanager
def spared(says: Callable[[], str]) -> Iterator[None]:
    """Within, memory that runs out becomes an error of this sentence, which names what to lower."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ExhaustedError(says()) from error


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a misspelt name, with the nearest known one suggested.

    >>> print(unknown("method", "lott", ["vanilla", "lot"]))
    There is no method 'lott'; did you mean 'lot'? Known: lot, vanilla.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return UsageError(f"There is no {kind} '{name}'{hint} Known: {', '.join(names)}.")
