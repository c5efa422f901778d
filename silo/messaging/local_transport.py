"""The direct lane between silos of one user on one host: the messages of the TCP one, through unix sockets.

All silos of a user on a host have their sockets in one folder, which is closed to everybody else, each under a name
that no other silo has or had. A silo offers that name alone. Whoever finds a socket of this name in its own folder is
therefore on the same host (or shares that folder with it, which comes to the same); where there is none, or somebody
else listens, TCP is there. As on any way, it is the greeting that proves who answers, and which incarnation of it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from silo.directory.errors import EndpointUnusable
from silo.logs import get_logger
from silo.messaging.direct_transport import Dialled, DirectListener
from silo.messaging.transport import Connection, ConnectionLost, bind_error

log = get_logger(__name__)
PATH_BYTES_MAX: Final = 103
"""The longest path of a socket: what macOS takes, less than Linux does."""
ACCEPTED_WITHIN_PASSES: Final = 3
"""Passes of the loop after which whoever had dialled is accepted. asyncio forgets a connection that it accepts while
the listener is closed, and dialling a socket takes no pass, so that there would be some."""
OWN_BITS: Final = 0o700
OTHERS_BITS: Final = 0o077
_NAME: Final = re.compile(r"\d{1,10}-[0-9a-f]{16}\.sock")
"""By whom, for people, and a word that nobody guesses or has by accident."""


def own_folder() -> Path:
    """Where the sockets of this user's silos are."""
    return Path(tempfile.gettempdir()) / f"silo-{os.geteuid()}"


class LocalTransport:
    """Connections through unix sockets, on the running loop. Endpoints are names of sockets in one folder.

    Args:
        folder: where they are; made when something is to listen there.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = own_folder() if folder is None else folder
        self._dialled = Dialled()

    def reaches(self, endpoint: str) -> bool:
        """Whether a socket of this name is to be had from here."""
        if _NAME.fullmatch(endpoint) is None or not _is_closed_to_others(self._folder):
            return False
        try:
            return stat.S_ISSOCK((self._folder / endpoint).lstat().st_mode)
        except OSError:
            return False

    async def dial(self, endpoint: str) -> Connection:
        connection = self._dialled.protocol()
        if not self.reaches(endpoint):
            raise ConnectionLost(f"there is no socket {endpoint!r} in {self._folder}")
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(self._folder / endpoint))
        except OSError as error:
            raise ConnectionLost(f"{endpoint}: {error.strerror or error}") from None
        return connection

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> LocalListener:
        """Bind a socket of this name, or of a new one where it is empty, and remove those that others left behind.

        Raises:
            EndpointInUse: somebody listens by that name.
            EndpointUnusable: no socket can be had there for another reason.
        """
        folder = self._folder
        path = folder / (endpoint or f"{os.getpid()}-{secrets.token_hex(8)}.sock")
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise EndpointUnusable(errno.ENAMETOOLONG, f"{path} is too long for a socket: {PATH_BYTES_MAX} bytes")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder.mkdir(OWN_BITS, parents=True, exist_ok=True)  # fails where it is something else than a folder
            if not _is_closed_to_others(folder):
                raise EndpointUnusable(errno.EACCES, f"{folder} is not this user's alone: remove it, or set TMPDIR")
            _sweep(folder)
            bound.setblocking(False)
            bound.bind(str(path))
        except OSError as error:
            bound.close()
            raise error if isinstance(error, EndpointUnusable) else bind_error(path.name, error) from None
        listener = LocalListener(accept, path)
        server = await asyncio.get_running_loop().create_unix_server(listener.protocol, sock=bound)
        listener.opened(server, path.name)
        return listener

    async def close(self) -> None:
        await self._dialled.close()


class LocalListener(DirectListener):
    """A bound socket, which goes when it is closed."""

    def __init__(self, accept: Callable[[Connection], Awaitable[None]], path: Path) -> None:
        super().__init__(accept)
        self._path = path

    async def close(self, grace_s: float = 0.0) -> None:
        self._path.unlink(missing_ok=True)  # first, so that nobody dials what is about to go
        for _ in range(ACCEPTED_WITHIN_PASSES):
            await asyncio.sleep(0)
        await super().close(grace_s)


def _is_closed_to_others(folder: Path) -> bool:
    """Whether it is a folder of this user, and no link to one, that nobody else may look into."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_BITS


def _sweep(folder: Path) -> None:
    """Remove the sockets of processes that have ended without doing so, such as those that were killed."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and _is_left_behind(path):
            log.debug("transport.socket_left_behind", path=str(path))
            path.unlink(missing_ok=True)


def _is_left_behind(path: Path) -> bool:
    """Whether no process has this socket any more.

    It is asked by a socket of another kind: a living one refuses that for its kind, also between being bound and being
    listened on, and its owner hears nothing of it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False
