"""The seam to whatever carries bytes between two processes: gRPC in the product, memory in simulation."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from silo.directory.errors import EndpointInUse, EndpointUnusable
from silo.logs import get_logger

log = get_logger(__name__)
BIND_REMEDIES: Final = {
    errno.EADDRNOTAVAIL: "; name an address of this machine, and with advertise the one where others find it",
    errno.EACCES: "; choose a port above 1023",
}
"""What to do about an endpoint that cannot be had, by what the operating system says."""


class ConnectionLost(ConnectionError):
    """The connection is gone; what was written last may or may not have arrived."""


class Connection(Protocol):
    """One stream of messages each way. It keeps their order and their borders, and may break at any moment."""

    @property
    def remote(self) -> str:
        """What is known of the other end, for messages to people."""
        ...

    async def read(self) -> bytes | memoryview | None:
        """The next message; None once the other end has closed in order. Raises ConnectionLost."""
        ...

    async def write(self, body: bytes) -> None:
        """Hand over one message; returns when there is room for the next. Raises ConnectionLost.

        It waits for nothing but futures, and asks for no current task: it is driven without one.
        """
        ...

    async def close(self) -> None:
        """End the stream; reads and writes that wait are woken."""
        ...


class Listener(Protocol):
    """A bound endpoint."""

    @property
    def endpoint(self) -> str:
        """`host:port` as it was really bound."""
        ...

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept no more, and end what is open, at the latest after the grace."""
        ...


class Transport(Protocol):
    """How to reach and be reached."""

    async def dial(self, endpoint: str) -> Connection:
        """Open a stream to whoever listens there. Raises ConnectionLost."""
        ...

    async def listen(self, endpoint: str, accept: Callable[[Connection], Awaitable[None]]) -> Listener:
        """Bind, and run `accept` for each stream that comes in, until it returns. Raises EndpointInUse."""
        ...

    async def close(self) -> None:
        """Close every dialled connection and what they share."""
        ...


async def serve(accept: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
    """Run `accept` for a connection that came in, and close that; what fails in it is logged, and ends nothing else."""
    try:
        await accept(connection)
    except ConnectionLost as error:
        log.debug("transport.connection_lost", remote=connection.remote, why=str(error))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.exception("transport.connection_failed", remote=connection.remote)
    except Exception:
        log.exception("transport.connection_failed", remote=connection.remote)
    finally:
        await connection.close()


def bind_error(endpoint: str, refused: OSError) -> EndpointUnusable:
    """What to raise where the operating system does not let this process listen there."""
    if refused.errno == errno.EADDRINUSE:
        return EndpointInUse(refused.errno, f"another process listens at {endpoint}: choose another port, or stop it")
    remedy = BIND_REMEDIES.get(refused.errno or 0, "")
    return EndpointUnusable(refused.errno, f"cannot listen at {endpoint}: {refused.strerror or refused}{remedy}")
