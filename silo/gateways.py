"""Where a client learns which silos to knock at: from the membership in Redis, or from a list of endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from silo.directory.errors import InvalidSettings, MembershipUnavailable
from silo.directory.membership import View
from silo.endpoints import split_endpoint

if TYPE_CHECKING:
    from silo.directory.members_reader import MembersReader

KNOCK_PAUSE_S = 0.5
"""The pause between two rounds over endpoints of which none answered."""
KNOCK_EVERY_S = 5.0
"""The pause between two rounds over endpoints of which one did."""


class GatewayFollower(Protocol):
    """Who wants to know: the client."""

    def on_view(self, view: View) -> None: ...

    async def on_endpoint(self, endpoint: str) -> bool: ...

    def on_trouble(self, what: str) -> None: ...


class GatewaySource(Protocol):
    """Finds gateways, for as long as it is followed; a client and its administrator's half may both follow one."""

    async def follow(self, follower: GatewayFollower) -> None:
        """Report what is found until cancelled."""
        ...

    async def close(self) -> None: ...


class RedisGateways:
    """Reads the members from the cluster's Redis."""

    def __init__(self, url: str, cluster: str) -> None:
        self._url = url
        self._cluster = cluster

    async def follow(self, follower: GatewayFollower) -> None:
        from silo.directory.members_reader import MembersReader  # redis-py takes its time, and lists need none
        from silo.directory.redis_connection import open_redis

        redis = open_redis(self._url)
        try:
            await self._read(MembersReader(redis, self._cluster), follower)
        finally:
            await redis.aclose()

    async def _read(self, reader: MembersReader, follower: GatewayFollower) -> None:
        reader.subscribe(follower.on_view)
        while not reader.view.version:
            try:
                view = await reader.read()
            except MembershipUnavailable as error:
                follower.on_trouble(str(error))
            else:
                if view.version:
                    break
                follower.on_trouble(
                    f"Redis lists no silo of cluster {self._cluster!r}; see that this is its name, and that one runs"
                )
            await asyncio.sleep(KNOCK_PAUSE_S)
        await reader.follow()

    async def close(self) -> None:
        """Nothing is held: each follower has a connection of its own."""


class ListedGateways:
    """Knocks at the endpoints that it was given; whoever answers tells of the other gateways."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """Raises InvalidSettings where one of them is not of the form host:port."""
        for endpoint in endpoints:
            try:
                split_endpoint(endpoint)
            except ValueError as error:
                raise InvalidSettings(f"gateway: {error}") from None
        self._endpoints = tuple(endpoints)

    async def follow(self, follower: GatewayFollower) -> None:
        while True:
            found = [await follower.on_endpoint(endpoint) for endpoint in self._endpoints]
            await asyncio.sleep(KNOCK_EVERY_S if any(found) else KNOCK_PAUSE_S)

    async def close(self) -> None:
        """Nothing is held."""
