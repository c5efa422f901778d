"""The seam to whatever carries bytes between two processes: gRPC in the product, memory in simulation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol


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
