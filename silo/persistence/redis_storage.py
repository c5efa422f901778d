"""Grain storage on Redis or Valkey: each read and each write is one script call on one key.

Both may be sent twice: a read that was carried out finds its own claim, and a write its own etag. So failures that may
pass are retried, within the bounds of `redis_connection`, and an answer that was lost is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

from redis.exceptions import NoScriptError, ResponseError

from silo.directory.directory_scripts import DIRECTORY_BUCKETS, PROBE, Script
from silo.directory.errors import (
    DirectoryUnavailable,
    InvalidSettings,
    StorageOutcomeUnknown,
    StorageUnavailable,
    StoredStateUnreadable,
)
from silo.directory.redis_connection import (
    CONNECTIONS_MAX,
    RedisClient,
    asked,
    asked_of_any,
    is_transient,
    open_redis,
    part_of,
)
from silo.persistence.contract import (
    Change,
    Claim,
    Conflicting,
    Reading,
    Superseded,
    WriteOutcome,
    Written,
)
from silo.persistence.storage_scripts import READ, WRITE, check_cluster, pack_head, state_key, unpack_state

COMMANDS_IN_FLIGHT_MAX: Final = CONNECTIONS_MAX
"""Commands that one storage has out at once, at each server that it lies on.

More wait for their turn, and not for a connection, which would fail."""


class RedisStorage:
    """A GrainStorage whose rows lie in Redis; contract.py says what its methods promise.

    Args:
        redis: an asyncio client that answers in bytes; it stays its opener's to close. `RedisStorage.at` opens one.
        cluster: the cluster's name; states of other clusters on the same server are not seen.
    """

    def __init__(self, redis: RedisClient, cluster: str) -> None:
        check_cluster(cluster)
        self._redis = redis
        self._owns_redis = False
        self._cluster = cluster
        self._places: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(COMMANDS_IN_FLIGHT_MAX)
        )

    @classmethod
    def at(cls, url: str, cluster: str) -> RedisStorage:
        """A storage with a client of its own; connects when first used. Raises InvalidSettings, InvalidIdentity."""
        check_cluster(cluster)
        storage = cls(open_redis(url), cluster)
        storage._owns_redis = True
        return storage

    async def open(self) -> None:
        """Prove that the server can carry states; of a Redis Cluster, that one of its masters can.

        Raises:
            StorageUnavailable: none could be asked.
            InvalidSettings: it can be asked but will not do: scripts may not run.
        """
        keys = (f"silo:{{{self._cluster}:{bucket}}}:state:" for bucket in range(DIRECTORY_BUCKETS))
        try:
            await asked_of_any(
                self._redis,
                "opening the storage",
                keys,
                lambda key: self._redis.execute_command("EVAL", PROBE.text, 1, key),
            )
        except DirectoryUnavailable as error:
            if isinstance(error.__cause__, ResponseError) and not is_transient(error.__cause__):
                raise InvalidSettings(
                    f"the Redis user of the storage must be allowed EVAL and EVALSHA: {error.__cause__}"
                ) from error
            raise StorageUnavailable(str(error)) from error.__cause__

    async def read(self, claim: Claim, names: Sequence[str]) -> Reading:
        sending = _Sending(self._redis, READ, [state_key(self._cluster, claim.grain), *_words(claim), *names])
        try:
            answer = await self._ask(f"reading the state of {claim.grain}", sending)
        except DirectoryUnavailable as error:
            raise StorageUnavailable(str(error)) from error.__cause__
        match answer:
            case [b"read", found]:
                fields = cast("list[bytes | None]", found)
                return [
                    unpack_state(f"{name!r} of {claim.grain}", head, body)
                    for name, head, body in zip(names, fields[::2], fields[1::2], strict=True)
                ]
            case [b"superseded", epoch]:
                return Superseded(int(cast("bytes", epoch)))
            case _:
                raise _unreadable(claim, answer)

    async def write(self, claim: Claim, change: Change) -> WriteOutcome:
        words: list[str | bytes | int] = [state_key(self._cluster, claim.grain), *_words(claim), change.name]
        words += [change.expected, int(change.replaces), change.etag, pack_head(change)]
        if change.body is not None:
            words.append(change.body.body)
        sending = _Sending(self._redis, WRITE, words)
        try:
            answer = await self._ask(f"writing {change.name!r} of {claim.grain}", sending)
        except DirectoryUnavailable as error:
            kind = StorageOutcomeUnknown if sending.in_doubt else StorageUnavailable
            raise kind(str(error)) from error.__cause__
        if answer[0] in (b"conflict", b"superseded") and sending.in_doubt:
            # An earlier try may have been carried out, and what it wrote replaced by whoever was there since.
            raise StorageOutcomeUnknown(
                f"writing {change.name!r} of {claim.grain}: the answer to an earlier try was lost"
            )
        match answer:
            case [b"written"]:
                return Written()
            case [b"conflict", etag]:
                return Conflicting(cast("bytes", etag).decode())
            case [b"superseded", epoch]:
                return Superseded(int(cast("bytes", epoch)))
            case _:
                raise _unreadable(claim, answer)

    async def close(self) -> None:
        if self._owns_redis:
            await self._redis.aclose()

    async def _ask(self, what: str, sending: _Sending) -> list[object]:
        async with self._places[part_of(self._redis, sending.key)]:
            return await asked(self._redis, f"{what} in cluster {self._cluster!r}", sending.once)


class _Sending:
    """One command, and whether any try of it may have been carried out unheard."""

    def __init__(self, redis: RedisClient, script: Script, words: Sequence[str | bytes | int]) -> None:
        self._redis = redis
        self._script = script
        self._words = words
        self.key = str(words[0])
        self.in_doubt = False

    async def once(self) -> list[object]:
        """One try."""
        answered = False
        try:
            try:
                answer = await self._redis.execute_command("EVALSHA", self._script.sha, 1, *self._words)
            except NoScriptError:  # a new server, or one whose scripts were flushed: it keeps what it is sent whole
                answer = await self._redis.execute_command("EVAL", self._script.text, 1, *self._words)
            answered = True
            return cast("list[object]", answer)
        except ResponseError:
            answered = True  # the server has refused it
            raise
        finally:
            self.in_doubt = self.in_doubt or not answered


def _words(claim: Claim) -> tuple[str, str]:
    return str(claim.epoch), claim.activation


def _unreadable(claim: Claim, answer: list[object]) -> StoredStateUnreadable:
    line = cast("bytes", answer[-1])[:80]
    return StoredStateUnreadable(f"the stored state of {claim.grain} is of another release, and left alone: {line!r}")
