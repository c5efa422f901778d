"""Hints that the membership table on Redis has changed, for the lease's thread.

A subscription may be dead without anybody noticing: a half-open connection takes pings and brings nothing. So it has to
answer pings at the level of the application, and is opened anew when it does not. Nothing depends on it: the table is
read with each renewal anyway.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import redis

from silo.directory.logs import get_logger
from silo.directory.redis_connection import REDIS_ERRORS
from silo.directory.redis_membership import views_channel

_log = get_logger("silo.membership")

PING_EVERY_S: Final = 2.0
SILENCE_MAX_S: Final = 6.0
"""A subscription that brought nothing, not even a pong, for this long is given up."""
OPEN_EVERY_S: Final = 2.0
"""A subscription that failed is not tried again sooner."""
MESSAGES_MAX: Final = 1000
"""Messages read in one go; what is left makes the socket readable again."""


class Hints(Protocol):
    """What tells the lease's thread to look at the table; all methods are for that thread."""

    def fileno(self) -> int | None:
        """What becomes readable when there is something to read, if anything; `read` and `tend` may change it."""
        ...

    def read(self) -> int:
        """The newest version among the hints that have come in, or 0."""
        ...

    def tend(self, now: float) -> None:
        """Open, ping, or give up the connection, as is due. Never raises because of the network."""
        ...

    def close(self) -> None: ...


class RedisHints:
    """Hints by Redis pub/sub, through a connection of their own.

    Args:
        open_client: opens a blocking client whose every step ends within the seconds given.
        timeout_s: how long one step may take: at most the time between two renewals, since the lease's thread waits.
    """

    def __init__(self, open_client: Callable[[float], redis.Redis], cluster: str, timeout_s: float) -> None:
        self._open_client = open_client
        self._channel = views_channel(cluster)
        self._timeout_s = timeout_s
        self._client: redis.Redis | None = None
        self._pubsub: Any = None  # redis-py types its PubSub loosely
        self._opened_at: float | None = None
        self._pinged_at = 0.0
        self._heard_at = 0.0
        self._heard = False

    def fileno(self) -> int | None:
        connection = self._pubsub.connection if self._pubsub is not None else None
        held = cast(
            "socket.socket | None", getattr(connection, "_sock", None)
        )  # redis-py has no public way to wait for it
        return held.fileno() if held is not None and held.fileno() >= 0 else None

    def read(self) -> int:
        version = 0
        try:
            for _ in range(MESSAGES_MAX):
                message = self._pubsub.get_message(timeout=0) if self._pubsub is not None else None
                if message is None:
                    break
                self._heard = True
                if message["type"] == "message" and message["data"].isdigit():
                    version = max(version, int(message["data"]))
        except (*REDIS_ERRORS, ValueError) as error:
            self._give_up(f"it broke: {error}")
        return version

    def tend(self, now: float) -> None:
        if self._heard:
            self._heard, self._heard_at = False, now
        if self._pubsub is None:
            if self._opened_at is None or now - self._opened_at >= OPEN_EVERY_S:
                self._open(now)
            return
        if now - self._heard_at > SILENCE_MAX_S:
            self._give_up(f"it was silent for {now - self._heard_at:.1f} s")
        elif now - self._pinged_at >= PING_EVERY_S:
            self._pinged_at = now
            try:
                self._pubsub.ping()
            except REDIS_ERRORS as error:
                self._give_up(f"it broke: {error}")

    def close(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        client, self._client = self._client, None
        for closable in (pubsub, client):
            if closable is not None:
                closable.close()

    def _open(self, now: float) -> None:
        self._opened_at = self._heard_at = self._pinged_at = now
        try:
            self._client = self._open_client(self._timeout_s)
            self._pubsub = cast("Any", self._client).pubsub()
            self._pubsub.subscribe(self._channel)
        except REDIS_ERRORS as error:
            self._give_up(f"it could not be opened: {error}")

    def _give_up(self, because: str) -> None:
        _log.info("membership.hints_lost", why=because)
        self.close()
