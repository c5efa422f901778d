"""A client's view of the cluster, read from Redis: it follows the membership table and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, cast

from silo.directory.errors import MembershipUnavailable
from silo.directory.logs import get_logger
from silo.directory.membership import EMPTY_VIEW, View
from silo.directory.redis_connection import REDIS_ERRORS, RedisClient, cancellable
from silo.directory.redis_membership import members_key, read_table, translated, views_channel

_log = get_logger("silo.membership")

READ_EVERY_S: Final = 2.0
"""How long a change may go unnoticed where its hint was lost."""
READ_TIMEOUT_S: Final = 2.0
PING_AFTER_S: Final = 4.0
"""A subscription that is silent for this long is pinged, and after as long again opened anew: it may be dead."""


class MembersReader:
    """The members as Redis shows them. `follow` keeps `view` up to date; `read` alone reads once.

    Args:
        redis: an asyncio client; it stays its owner's, who closes it.
        cluster: the name of the cluster.
    """

    def __init__(self, redis: RedisClient, cluster: str, *, read_every_s: float = READ_EVERY_S) -> None:
        self._redis = redis
        self._key = members_key(cluster)
        self._channel = views_channel(cluster)
        self._read_every_s = read_every_s
        self._view = EMPTY_VIEW
        self._subscribers: list[Callable[[View], None]] = []
        self._hinted = asyncio.Event()
        self._reading = (
            asyncio.Lock()
        )  # one read at a time: so a later answer is a later state, a lower version included

    @property
    def view(self) -> View:
        return self._view

    def subscribe(self, on_view: Callable[[View], None]) -> Callable[[], None]:
        """Call back with each newer view; returns what ends the subscription.

        Its version is higher, except where the store has lost its data: then the table begins anew.
        """
        self._subscribers.append(on_view)
        return lambda: self._subscribers.remove(on_view)

    async def read(self) -> View:
        """A view read by a request that was sent after this call.

        Raises:
            MembershipUnavailable: Redis could not be asked; asking again is safe.
            InvalidSettings: Redis refuses this client.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._reading:
                fields = await cancellable(self._redis.execute_command("HGETALL", self._key))
        except TimeoutError:
            raise MembershipUnavailable(f"Redis did not show the members within {READ_TIMEOUT_S} s") from None
        except REDIS_ERRORS as error:
            raise translated(error) from error
        if not isinstance(fields, dict):  # a client's answer to a plain command, in the older protocol
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        self._adopt(View(read_table(cast("dict[bytes, bytes]", fields))))
        return self._view

    async def follow(self) -> None:
        """Read at every hint, and every `read_every_s` without one, until cancelled; raises InvalidSettings."""
        hints = asyncio.create_task(self._follow_hints(), name="silo-members-hints")
        failures = 0
        try:
            while not hints.done():
                self._hinted.clear()
                try:
                    await self.read()
                    failures = 0
                except MembershipUnavailable as error:
                    failures += 1
                    if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … in a row
                        _log.warning("membership.store_unreachable", why=str(error), failures=failures)
                with contextlib.suppress(TimeoutError):  # not wait_for: on 3.11 it may swallow a cancellation
                    async with asyncio.timeout(self._read_every_s):
                        await self._hinted.wait()
            hints.result()  # it never ends but by an error
        finally:
            hints.cancel()
            await asyncio.wait([hints])

    async def _follow_hints(self) -> None:
        open_pubsub = getattr(self._redis, "pubsub", None)
        if open_pubsub is None:  # it reads, and is told nothing
            await asyncio.Event().wait()
            return
        while True:
            pubsub = open_pubsub()
            try:
                await cancellable(pubsub.subscribe(self._channel))
                await self._hear(pubsub)
            except REDIS_ERRORS as error:
                _log.debug("membership.hints_lost", why=str(error))
                await asyncio.sleep(self._read_every_s)
            finally:
                await pubsub.aclose()

    async def _hear(self, pubsub: Any) -> None:
        """Until the subscription is silent even when it is pinged."""
        pinged = False
        while True:
            message = await cancellable(pubsub.get_message(timeout=PING_AFTER_S))
            if message is not None:
                pinged = False
                if message["type"] != "pong":
                    self._hinted.set()
            elif pinged:
                return
            else:
                pinged = True
                await cancellable(pubsub.ping())

    def _adopt(self, view: View) -> None:
        if (view.version, view.table.run) == (self._view.version, self._view.table.run):
            return
        self._view = view
        for on_view in list(self._subscribers):
            try:
                on_view(view)
            except Exception:
                _log.exception("membership.subscriber_failed", version=view.version)
