"""A site's folder: its secret, and whether it has withdrawn."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from anabranch.errors import DataError, UsageError
from anabranch.federation import WITHDRAWN

SITE_FILE = "site.toml"
SECRET_FILE = "secret"
AUDIT_FILE = "audit.jsonl"
STATE_FOLDER = "state"
PORT = 8002  # of the coordinator, by default; a site itself accepts no connection
_BITS = 63


def check_folder(folder: Path) -> None:
    """Refuses a folder that is none of a site."""
    if not (folder / SITE_FILE).is_file():
        raise UsageError(f"{folder} is no site's folder: it has no {SITE_FILE}. 'anabranch site init' makes one.")


def read_secret(folder: Path) -> int:
    """The site's secret; drawn on first use. No message ever says what the file holds."""
    path = folder / SECRET_FILE
    if not path.exists():
        write_secret(folder)
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}); let the site's own user read it.") from error
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**_BITS):
        raise DataError(f"{path} holds no secret; remove it, and another is drawn. Interrupted runs cannot go on then.")
    return int(text)


def write_secret(folder: Path, secret: int | None = None) -> None:
    """Writes a secret that only its owner may read; an existing one is never replaced."""
    if secret is not None and not 0 <= secret < 2**_BITS:
        raise UsageError(f"A secret was given that is no whole number of {_BITS} bits.")
    path = folder / SECRET_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}).") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.randbits(_BITS) if secret is None else secret}\n")


def secret_is_exposed(folder: Path) -> bool:
    """Whether others than the owner may read the secret."""
    path = folder / SECRET_FILE
    return path.exists() and os.name == "posix" and bool(path.stat().st_mode & 0o077)


def has_withdrawn(folder: Path) -> bool:
    """Whether the site answers nothing at present."""
    return (folder / WITHDRAWN).exists()


def withdraw(folder: Path) -> bool:
    """Ends all answers, from the next question on, also of processes that run already; whether that is new."""
    check_folder(folder)
    if has_withdrawn(folder):
        return False
    try:
        (folder / WITHDRAWN).touch()
    except OSError as error:
        raise DataError(f"{folder / WITHDRAWN} cannot be written ({error.strerror}); end the process.") from error
    return True


def go_back(folder: Path) -> bool:
    """Ends a withdrawal, if there is one: the policy alone decides again."""
    check_folder(folder)
    there = has_withdrawn(folder)
    (folder / WITHDRAWN).unlink(missing_ok=True)
    return there
