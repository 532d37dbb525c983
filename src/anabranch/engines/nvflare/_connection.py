"""The way to a federation's server: is it there, is it ours, and a session with it."""

from __future__ import annotations

import io
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from anabranch.engines.nvflare._kits import Kits
from anabranch.errors import AnabranchError, UsageError

OTHER_PORTS = "make the kits anew for other ports, with 'anabranch federation provision', and hand them out again"
logging.getLogger("nvflare").addHandler(logging.NullHandler())  # its warnings; what matters is said in sentences


def listens(host: str, port: int) -> bool:
    """Whether anybody is there."""
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError:
        return False
    return True


def greet(startup: Path, address: tuple[str, int], identity: str, advice: str) -> None:
    """Refuses a server that does not belong to the kit's federation. NVFLARE would try for ever, without a word."""
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:
        raise UsageError(
            f"The kit {startup.parent} has no usable certificate; ask the coordinator for another."
        ) from error
    try:
        with socket.create_connection(address, 5.0) as raw, context.wrap_socket(raw, server_hostname=identity):
            return
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return  # it is about to end
    except ssl.SSLError as error:
        raise UsageError(
            f"The server at {address[0]}:{address[1]} is not of this kit's federation ({error.reason}); {advice}."
        ) from error
    except OSError:
        return  # it is not there yet


@contextmanager
def session(kits: Kits, timeout: float = 10.0) -> Iterator[Any]:
    """A connection to the server in the name of the kits' user: NVFLARE's `Session`, closed at the end."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    greet(kits.admin / "startup", (kits.host, kits.admin_port), kits.host, f"end that one, or {OTHER_PORTS}")
    try:
        with redirect_stdout(io.StringIO()):
            admin = new_secure_session(kits.user, str(kits.admin), timeout=timeout, auto_login_max_tries=1)
    except Exception as error:
        raise AnabranchError(
            f"The server at {kits.host}:{kits.admin_port} does not answer {kits.user} ({error}); "
            f"is it running? Its log is {kits.server / 'log.txt'}."
        ) from error
    try:
        yield admin
    finally:
        admin.close()
