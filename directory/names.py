"""Addresses of hosts, for a thread that must not wait for a name to be looked up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from silo.directory.logs import get_logger

_log = get_logger("silo.membership")

Address = tuple[socket.AddressFamily, object]
"""A family, and what its sockets connect to."""


def split_host(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint that was checked where it was made."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


class HostNames:
    """Looks names up on threads of their own, one at a time for each, and anew whenever they are asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Address] = {}
        self._asking: set[tuple[str, int]] = set()

    def address(self, host: str, port: int) -> Address | None:
        """The address, at once: of a name, as it was last looked up; None while it is not known."""
        try:
            return _first(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            pass  # a name
        if (host, port) not in self._asking:
            self._asking.add((host, port))
            threading.Thread(target=self._look_up, args=(host, port), name="silo-lease-names", daemon=True).start()
        return self._known.get((host, port))

    def _look_up(self, host: str, port: int) -> None:
        try:
            self._known[host, port] = _first(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            _log.debug("membership.name_unknown", host=host, why=str(error))
        finally:
            self._asking.discard((host, port))


def _first(found: Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, object]]) -> Address:
    family, _, _, _, where = found[0]
    return family, where
