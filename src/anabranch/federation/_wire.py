"""Questions and answers as bytes: what every engine that crosses a process carries.

    4 bytes   length of the header, little endian
    header    {"protocol": …, "version": …, "run": …, "session": …, "round": …, "sequence": …}, of a question only
    message   as `encode` writes it

A site that does not answer sends a `Refused` instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from anabranch.errors import MessageError
from anabranch.federation._encoding import LARGEST, decode, encode
from anabranch.federation._message import Envelope, Message

LONGEST_NAME = 512  # characters of a run's name
LONGEST_HEADER = 4096  # bytes of a question's header
LONGEST_SENTENCE = 2000  # characters that are kept of what the other side wrote
_NUMBERS = ("session", "round", "sequence")


@dataclass(frozen=True)
class Refused(Message, kind="refused"):
    """Says in a sentence why there is no answer, and by the error's name what sort of reason it is.

    Reveals: the sentence. It names settings, limits and shapes, never values of the data.
    """

    error: str
    sentence: str


def readable(text: str) -> str:
    r"""The other side's words, fit for a screen and a log: of bounded length, without control characters.

    >>> readable("No\x1b[2J answer.")
    'No�[2J answer.'
    """
    kept = "".join(letter if letter.isprintable() else "�" for letter in text[:LONGEST_SENTENCE])
    return kept if len(text) <= LONGEST_SENTENCE else f"{kept} …"


def installed_version() -> str:
    """The version of this package."""
    try:
        return version("anabranch")
    except PackageNotFoundError:  # used from a folder of sources
        return "0"


def encode_question(envelope: Envelope) -> bytes:
    """A question with its place in the run, as bytes."""
    facts = {"version": installed_version(), "run": envelope.run}
    header = json.dumps({**facts, **{name: getattr(envelope, name) for name in _NUMBERS}}, separators=(",", ":"))
    return len(header.encode()).to_bytes(4, "little") + header.encode() + encode(envelope.question)


def decode_question(data: bytes) -> Envelope:
    """The question in the bytes; whatever is none is refused with a MessageError."""
    if len(data) > LARGEST:
        raise MessageError(f"A question of {len(data)} bytes arrived; the largest allowed has {LARGEST}.")
    length = int.from_bytes(data[:4], "little")
    if length > min(LONGEST_HEADER, len(data) - 4):
        raise MessageError("Bytes arrived that are no question: their header is cut off or too long.")
    try:
        header = json.loads(data[4 : 4 + length].decode())
    except Exception as error:
        raise MessageError(f"Bytes arrived that are no question ({type(error).__name__}).") from error
    _check_header(header)
    question = decode(data[4 + length :])
    return Envelope(header["run"], header["round"], header["sequence"], question, header["session"])


def _check_header(header: Any) -> None:
    if not isinstance(header, dict) or header.keys() != {"version", "run", *_NUMBERS}:
        raise MessageError("A question arrived whose header does not say its version, run, round and sequence.")
    theirs, ours = header["version"], installed_version()
    if not isinstance(theirs, str) or _release(theirs) != _release(ours):
        raise MessageError(
            f"A question of version {str(theirs)[:20]} arrived at version {ours}; install the same one on both sides."
        )
    if not isinstance(header["run"], str) or len(header["run"]) > LONGEST_NAME or not header["run"].isprintable():
        raise MessageError(f"A question arrived whose run has no name of at most {LONGEST_NAME} printable characters.")
    for name in _NUMBERS:
        if type(header[name]) is not int or not 0 <= header[name] < 2**63:
            raise MessageError(f"A question arrived with a {name} that is no whole number of 63 bits.")


def _release(text: str) -> str:
    """What must agree: 0.1 of 0.1.7. Patches keep to one protocol."""
    return ".".join(text.split(".")[:2])
