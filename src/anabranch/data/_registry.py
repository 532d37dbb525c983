"""Archives from package registries, by the registries' own clients: pinned, checked, then opened.

No connection is opened here: npm, apt-get and pip do that, as they are configured on this machine.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import IO

from anabranch.errors import DataError

_LARGEST = 96 * 2**20  # bytes a file of a package may have; the largest here is Inception's, with 87 million


@dataclass(frozen=True)
class Package:
    """An archive in a registry, and the files in it that are wanted: their paths, and the names they get."""

    client: str
    name: str
    version: str
    sha256: str
    size: int
    members: Mapping[str, str]

    def __str__(self) -> str:
        return f"{_CLIENTS[self.client].registry} {self.name} {self.version}"


@dataclass(frozen=True)
class _Client:
    """How a registry is asked for an archive. The second request, if any, is made where the first fails."""

    registry: str
    suffix: str
    command: Callable[[], list[str] | None]
    requests: tuple[str, ...]


def _on_path(program: str, *arguments: str) -> Callable[[], list[str] | None]:
    def command() -> list[str] | None:
        path = shutil.which(program)
        return [path, *arguments] if path else None

    return command


def _pip() -> list[str] | None:
    start = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [shutil.which("pip") or ""]
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--dest", ".")
    return [*start, "download", *options] if start[0] else None


_CLIENTS = {
    "npm": _Client(
        "npm", ".tgz", _on_path("npm", "pack", "--ignore-scripts", "--fetch-retries=1"), ("{name}@{version}",)
    ),
    # Debian keeps one version at a time: whatever it has is fetched, so that the sentence can name its checksum.
    "apt-get": _Client("Debian", ".deb", _on_path("apt-get", "download"), ("{name}={version}", "{name}")),
    "pip": _Client("PyPI", ".whl", _pip, ("{name}=={version}",)),
}


def fetch(package: Package, into: Path) -> Path:
    """The archive, fetched by its client into an empty folder and checked."""
    client = _CLIENTS[package.client]
    command = client.command()
    if command is None:
        raise DataError(f"{package} is fetched with {package.client}, which is not installed here.")
    for request in client.requests:
        asked = request.format(name=package.name, version=package.version)
        done = _run([*command, asked], into)
        if done.returncode == 0:
            break
    else:
        raise DataError(f"{package} could not be fetched; {package.client} says: {_reason(done.stderr)}.")
    archives = list(into.glob(f"*{client.suffix}"))
    if len(archives) != 1:
        raise DataError(f"{package} was fetched, but {package.client} left {len(archives)} archives instead of one.")
    check(package, archives[0])
    return archives[0]


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise DataError(f"'{command[0]}' cannot be run: {error.strerror or error}.") from error


def check(package: Package, archive: Path) -> None:
    """Refuses an archive that is not the pinned one, before anything in it is read."""
    found = digest(archive)
    if found != package.sha256:
        raise DataError(
            f"'{archive.name}' is not the archive that is known as {package}: its sha256 is {found}, expected was"
            f" {package.sha256}. It was not opened."
        )


def digest(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def unpack(package: Package, archive: Path, into: Path) -> None:
    """Writes the wanted files, under their plain names, and nothing else of the archive.

    Only the content of regular files is taken, so no path and no link in an archive can lead anywhere.
    """
    left = dict(package.members)
    try:
        with _open(archive) as files:
            for path, size, content in files:
                if path not in left or content is None:
                    continue
                if size > _LARGEST:
                    raise DataError(f"'{path}' in '{archive.name}' has {size} bytes, more than it can have.")
                with (into / left.pop(path)).open("wb") as file:
                    shutil.copyfileobj(content, file)
                if not left:
                    break
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"'{archive.name}' cannot be unpacked: {error}.") from error
    if left:
        raise DataError(f"'{archive.name}' does not hold {', '.join(left)}.")


Files = Iterator[tuple[str, int, IO[bytes] | None]]


@contextmanager
def _open(archive: Path) -> Iterator[Files]:
    """The files of an archive in turn: path, size and, of regular files, content."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield ((entry.filename, entry.file_size, wheel.open(entry)) for entry in wheel.infolist())
    elif archive.suffix == ".deb":
        program = shutil.which("dpkg-deb")
        if program is None:
            raise DataError(f"'{archive.name}' is unpacked with dpkg-deb, which is not installed here.")
        command = [program, "--fsys-tarfile", str(archive)]
        # It is told nothing when the rest is not wanted, and would complain of it.
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as tar,
        ):
            yield _of_tar(tar)
    else:
        with tarfile.open(archive, mode="r|gz") as tar:
            yield _of_tar(tar)


def _of_tar(tar: tarfile.TarFile) -> Files:
    for entry in tar:
        yield entry.name.removeprefix("./"), entry.size, tar.extractfile(entry) if entry.isreg() else None


def _reason(stderr: str) -> str:
    """The line that says most: the first error with four words, since npm ends with a stack and advice."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line in lines:
        for mark in ("npm error ", "npm ERR! ", "E: ", "ERROR: "):
            if line.startswith(mark) and len(line.removeprefix(mark).split()) >= 4:
                return line.removeprefix(mark).strip().rstrip(".")
    return lines[-1].rstrip(".") if lines else "nothing"
