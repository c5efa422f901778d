"""Connections to Redis or Valkey: URLs, timeouts, and what to do about each kind of error.

URLs: `redis://`, `rediss://` (TLS) and `unix://` as redis-py reads them, and

    redis+sentinel://[user:password@]host:port,host:port/service[/db]
    redis+cluster://[user:password@]host:port,host:port

with `rediss+sentinel` and `rediss+cluster` for TLS. Options of the redis-py client follow `?` as they do in its own
URLs; the sentinels' own login, where they ask for one, is given there as `sentinel_username` and `sentinel_password`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

import hiredis
import msgspec
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.exceptions
import redis.retry
import redis.sentinel
from redis.backoff import NoBackoff
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from silo.directory.errors import DirectoryUnavailable, InvalidSettings
from silo.directory.logs import get_logger
from silo.directory.redis_cluster import BlockingCluster, ClusterClient

Options = dict[str, Any]
"""Keyword arguments of redis-py's clients, which annotates them only in part."""

CONNECT_TIMEOUT_S: Final = 1.0
COMMAND_TIMEOUT_S: Final = 1.0
"""How long one round trip may take before its connection is given up."""
CONNECTIONS_MAX: Final = 32
"""Connections of one client to one server; further commands wait for one, COMMAND_TIMEOUT_S at the longest."""
AT_HAND_MAX: Final = 8
"""Of these, how many are kept at hand for the next commands."""
TRIES_MAX: Final = 3
TRY_WITHIN_S: Final = 1.5
"""No try starts later than this: a command has failed for good one connect and one command timeout after it."""
WAIT_BETWEEN_TRIES_S: Final = 0.05
WAIT_BETWEEN_TRIES_MAX_S: Final = 0.4
"""The wait before the next try is random, up to WAIT_BETWEEN_TRIES_S, doubled with each try, up to this."""

TRANSIENT_CODES: Final = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNKILLABLE",
    }
)
"""Error codes of a server that will not do it now but may soon, be it this server or the one that takes its place."""
_CODE = re.compile(r"(?:^|-)([A-Z]{3,}) ")
_CODES_OF_CLASSES: Final = (
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
)
"""redis-py cuts the code off the text of an error that it has a class for."""
_LASTING: Final = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
_PASSING: Final = (
    OSError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterError,
    redis.exceptions.ConnectionError,
    redis.exceptions.NoScriptError,
    redis.exceptions.RedisClusterException,
    redis.exceptions.TimeoutError,
    redis.exceptions.TryAgainError,
)
REDIS_ERRORS: Final = (OSError, redis.exceptions.RedisError, redis.exceptions.RedisClusterException)
"""Everything that redis-py raises for what a server, or the way to it, did."""
_ONE_PROTOCOL: Final[Options] = {"protocol": 2}
"""RESP2: answers in one form at every server, no HELLO for an ACL to refuse, no pushed messages among answers."""
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")

_T = TypeVar("_T")
_log = get_logger("silo.directory.redis")


class RedisPipeline(Protocol):
    """What we use of redis-py's pipelines: commands that travel together and succeed or fail alone."""

    def execute_command(self, *args: Any) -> Any: ...

    async def execute(self, raise_on_error: bool = True) -> list[Any]: ...


class RedisClient(Protocol):
    """What we use of redis-py's asyncio clients, for one server, behind Sentinel, or for a Redis Cluster."""

    def pipeline(self, transaction: Any = ...) -> Any:
        """A RedisPipeline; typed loosely because redis-py's clients agree on no type for it."""
        ...

    def execute_command(self, *args: Any) -> Awaitable[Any]: ...

    async def aclose(self) -> None: ...


class RedisTarget(msgspec.Struct, frozen=True):
    """What a Redis URL says."""

    mode: str
    """`server`, `sentinel` or `cluster`."""
    url: str
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: Options = {}

    @property
    def public(self) -> str:
        """The URL without user and password, for logs and messages."""
        return re.sub(r"//[^/]*@", "//", self.url.partition("?")[0])


def parse_url(url: str) -> RedisTarget:
    """What a Redis URL says; raises InvalidSettings with what is wrong with it."""
    try:
        scheme, plus, mode = url.partition("://")[0].lower().partition("+")
        if not plus and scheme in ("redis", "rediss", "unix"):
            cast("Any", redis.asyncio.ConnectionPool).from_url(url)  # reads the whole URL, opens nothing
            return RedisTarget("server", url)
        if scheme not in ("redis", "rediss") or mode not in ("sentinel", "cluster"):
            raise ValueError("its scheme is none of redis, rediss, unix, redis+sentinel, redis+cluster")
        return _parse_hosts(url, mode, tls=scheme == "rediss")
    except ValueError as error:
        shown = re.sub(r"//[^/]*@", "//", url)
        raise InvalidSettings(f"{shown!r} is not a Redis URL: {error}") from None


def _parse_hosts(url: str, mode: str, *, tls: bool) -> RedisTarget:
    # By hand: to the standard library a list of hosts is no host, and one with brackets in it an error.
    before_query, _, query = url.partition("://")[2].partition("?")
    netloc, _, path = before_query.partition("/")
    login, _, addresses = netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, _, db = path.strip("/").partition("/")
    options: Options = cast("Any", redis.connection.parse_url)(f"redis://?{query}")  # checks and converts values
    if mode == "sentinel" and not service:
        raise ValueError("a Sentinel URL ends in /SERVICE")
    if mode == "cluster" and service:
        raise ValueError("a Redis Cluster has no databases to choose from")
    if db:
        options["db"] = int(db)
    if username:
        options["username"] = unquote(username)
    if password:
        options["password"] = unquote(password)
    if tls:
        options["ssl"] = True
    port_default = 26379 if mode == "sentinel" else 6379
    hosts = tuple(_parse_host(address, port_default) for address in addresses.split(","))
    return RedisTarget(mode, url, hosts, service, options)


def _parse_host(address: str, port_default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if not parts.hostname:
        raise ValueError(f"{address!r} is not host:port")
    return parts.hostname, parts.port or port_default


def open_redis(url: str) -> RedisClient:
    """An asyncio client for the URL. Connects when first used; its owner closes it. Raises InvalidSettings."""
    target = parse_url(url)
    options: Options = _ONE_PROTOCOL | {
        "socket_timeout": COMMAND_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
    }
    untried: Options = {"retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}
    if target.mode == "cluster":
        return ClusterClient(target.hosts, CONNECTIONS_MAX, **(options | untried | target.options))
    if target.mode == "sentinel":
        options |= untried | {"max_connections": CONNECTIONS_MAX}
        to_sentinels, to_master = _logins(target.options)
        sentinel: Any = cast("Any", _Sentinels)(list(target.hosts), sentinel_kwargs=options | to_sentinels)
        master = sentinel.master_for(target.service, redis_class=_BehindSentinel, **(options | to_master))
        return cast("RedisClient", master)
    pool = cast("Any", _Connections).from_url(
        url, max_connections=CONNECTIONS_MAX, timeout=COMMAND_TIMEOUT_S, **(options | untried)
    )
    pool.connection_class = _WRITTEN_AT_ONCE[pool.connection_class]
    return cast("RedisClient", cast("Any", _OneServer).from_pool(pool))


class _Connections(redis.asyncio.BlockingConnectionPool):
    """The connections to one server, a few of them at hand: redis-py's own way to lease one takes longer than most
    commands do. To redis-py these are in use; whoever asks it for one gets one of them first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        cast("Any", super()).__init__(*args, **options)
        self._at_hand: list[Any] = []
        self._asking = 0
        """How many wait for redis-py to lease them one: what is given back meanwhile is theirs."""

    async def at_hand(self) -> Any:
        """A connection that is open and silent; None where none is at hand."""
        while self._at_hand:
            connection, is_silent = self._at_hand.pop(), False
            try:
                is_silent = not await _has_something_to_say(connection)
            except (OSError, redis.exceptions.RedisError):
                pass  # it is lost
            finally:
                if not is_silent:
                    await super().release(connection)  # redis-py makes another one of it
            if is_silent:
                return connection
        return None

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        connection = await self.at_hand()
        if connection is not None:
            return connection
        self._asking += 1
        try:
            return await cast("Any", super()).get_connection(*args, **options)
        finally:
            self._asking -= 1

    async def release(self, connection: Any) -> None:
        if connection.is_connected and not self._asking and len(self._at_hand) < AT_HAND_MAX:
            self._at_hand.append(connection)
        else:
            await super().release(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        at_hand, self._at_hand = self._at_hand, []
        for connection in at_hand:
            await super().release(connection)
        await super().disconnect(inuse_connections)


async def _has_something_to_say(connection: Any) -> bool:
    """Whether there is more to read than anybody has asked for, or the end: such a connection is of no use."""
    look = getattr(connection, "can_read", None) or connection.can_read_destructive  # as older releases call it
    return bool(await look())


class _OneServer(redis.asyncio.Redis):
    """The client of one server. A command for which there is a connection at hand does without what redis-py does about
    each: it measures how long that took, and prepares tries that it is not to make."""

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        pool = cast("_Connections", self.connection_pool)
        connection = await pool.at_hand()
        if connection is None:
            return await cast("Any", super()).execute_command(*words, **options)
        try:
            await connection.send_command(*words)
            return await cast("Any", self).parse_response(connection, words[0], **options)
        finally:
            await pool.release(connection)


class _WrittenAtOnce(redis.asyncio.connection.AbstractConnection):
    """A connection whose commands are packed in C, as redis-py's blocking ones are, and written without a task.

    redis-py bounds a write by `wait_for`, which on Python 3.11 takes two passes of the loop, and one command takes
    three. The bound is the same here: of `socket_timeout`. For one server; behind Sentinel and in a Redis Cluster the
    connections are redis-py's own.
    """

    _pack: ClassVar[Any] = cast("Any", redis.connection.HiredisRespSerializer()).pack
    _pack_all: ClassVar[Any] = staticmethod(cast("Any", hiredis).pack_command)

    def pack_command(self, *args: Any) -> list[bytes]:
        try:
            return [self._pack_all(args)]
        except TypeError:  # redis-py knows of more types
            return cast("list[bytes]", self._pack(*args))

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        within_s: float | None = self.socket_timeout
        self.socket_timeout = None  # then it waits for nothing but a full buffer
        try:
            async with asyncio.timeout(within_s):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            raise redis.exceptions.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = within_s


class _Connection(_WrittenAtOnce, redis.asyncio.Connection):
    """By TCP."""


class _TlsConnection(_WrittenAtOnce, redis.asyncio.SSLConnection):
    """By TLS."""


class _UnixConnection(_WrittenAtOnce, redis.asyncio.UnixDomainSocketConnection):
    """By a Unix socket."""


_WRITTEN_AT_ONCE: Final = {
    redis.asyncio.Connection: _Connection,
    redis.asyncio.SSLConnection: _TlsConnection,
    redis.asyncio.UnixDomainSocketConnection: _UnixConnection,
}


def open_sync(url: str, timeout_s: float) -> redis.Redis:
    """A blocking client for one thread, whose every wait ends after `timeout_s`. It retries nothing.

    For a server or behind Sentinel it connects when first used. For a Redis Cluster it asks the cluster's shape at
    once, may raise redis-py's errors for that, and is a RedisCluster, which has the commands of Redis. Raises
    InvalidSettings.
    """
    target = parse_url(url)
    options: Options = _ONE_PROTOCOL | {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    untried: Options = {"retry": redis.retry.Retry(NoBackoff(), 0)}
    if target.mode == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in target.hosts]
        known: Options = options | untried | {"require_full_coverage": False} | target.options
        return cast("redis.Redis", BlockingCluster(startup_nodes=nodes, **known))
    if target.mode == "sentinel":
        options |= untried
        to_sentinels, to_master = _logins(target.options)
        sentinel: Any = redis.sentinel.Sentinel(list(target.hosts), sentinel_kwargs=options | to_sentinels)
        return cast("redis.Redis", sentinel.master_for(target.service, **(options | to_master)))
    return cast("redis.Redis", cast("Any", redis.Redis).from_url(url, **(options | untried)))


def _logins(options: Options) -> tuple[Options, Options]:
    """What of a Sentinel URL is for the connections to sentinels, and what for those to the master."""
    to_sentinels = {name.removeprefix("sentinel_"): options[name] for name in _SENTINEL_OPTIONS if name in options}
    if "ssl" in options:
        to_sentinels["ssl"] = options["ssl"]
    return to_sentinels, {name: option for name, option in options.items() if name not in _SENTINEL_OPTIONS}


class _Sentinels(redis.asyncio.sentinel.Sentinel):
    """The sentinels, none of whom is forgotten.

    redis-py puts the one that has answered in front by its place in the list; when two commands do so at once, the list
    has one of them twice and another one no more, which then is neither asked again nor closed.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        found: Any = self  # not annotated
        known = tuple(found.sentinels)
        try:
            return cast("tuple[str, int]", await cast("Any", super()).discover_master(service_name))
        finally:
            found.sentinels = list(dict.fromkeys((*found.sentinels, *known)))


class _BehindSentinel(redis.asyncio.Redis):
    """The client of a service's master that also closes the clients of the sentinels it asked."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await cast("Any", self.connection_pool).sentinel_manager.aclose()


async def asked(client: RedisClient, what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The answer of a command that may be sent twice: tried again, within bounds, while its failure may pass.

    Raises:
        DirectoryUnavailable: it failed for good; the cause is redis-py's error. The command may have been carried out.
    """
    began = time.monotonic()
    try:
        return await cancellable(_by_connection(ask()))
    except REDIS_ERRORS as error:
        if not is_transient(error):
            raise _unavailable(what, error) from error
        first = [error]  # what follows has cost nothing so far

    async def before_next_try(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        _log.debug("directory.try_failed", what=what, attempt=state.attempt_number, why=str(error))
        if isinstance(error, redis.exceptions.TimeoutError) or (error is not None and "READONLY" in error_codes(error)):
            await drop_idle(client)  # they lead to the same server, which is dead, cut off or demoted

    tries = AsyncRetrying(
        stop=stop_after_attempt(TRIES_MAX) | stop_after_delay(TRY_WITHIN_S - (time.monotonic() - began)),
        wait=wait_random_exponential(multiplier=WAIT_BETWEEN_TRIES_S, max=WAIT_BETWEEN_TRIES_MAX_S),
        retry=retry_if_exception(is_transient),
        before_sleep=before_next_try,
        sleep=asyncio.sleep,
        reraise=True,
    )
    try:
        async for attempt in tries:
            with attempt:
                if first:
                    raise first.pop()
                return await cancellable(_by_connection(ask()))
    except REDIS_ERRORS as error:
        raise _unavailable(what, error) from error
    raise AssertionError("tenacity ended its tries with neither an answer nor an error")


def _unavailable(what: str, error: BaseException) -> DirectoryUnavailable:
    return DirectoryUnavailable(f"{what}: {type(error).__name__}: {error}")


async def asked_of_any(client: RedisClient, what: str, keys: Iterable[str], ask: Callable[[str], Awaitable[_T]]) -> _T:
    """As `asked`, of any one of the servers that have these keys: one that is away holds up nobody then.

    Raises:
        DirectoryUnavailable: none answers; or one does, and will not do it.
    """
    failures: dict[str, DirectoryUnavailable] = {}
    for key in keys:
        part = part_of(client, key)
        if part in failures:
            continue
        try:
            return await asked(client, what, partial(ask, key))
        except DirectoryUnavailable as error:
            if error.__cause__ is None or not is_transient(error.__cause__):
                raise
            failures[part] = error
    raise next(iter(failures.values()))


async def _by_connection(awaitable: Awaitable[_T]) -> _T:
    """The awaitable, with uvloop's word for a connection that was closed under it put into redis-py's."""
    try:
        return await awaitable
    except RuntimeError as error:
        if "handler is closed" not in str(error):
            raise
        raise redis.exceptions.ConnectionError(str(error)) from error


async def cancellable(awaitable: Awaitable[_T]) -> _T:
    """The awaitable, with a cancellation that got lost in it made good.

    redis-py sends by way of `wait_for`, which on Python 3.11 may swallow one.
    """
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        return await awaitable
    finally:
        if task is not None and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


def is_transient(error: BaseException) -> bool:
    """Whether the same command may succeed a little later, at this server or the one that takes its place."""
    if isinstance(error, _LASTING):
        return False
    return isinstance(error, _PASSING) or not error_codes(error).isdisjoint(TRANSIENT_CODES)


def error_codes(error: BaseException) -> set[str]:
    """The codes that a server's error names: in front, or within where Redis before 7 wraps a script's failure."""
    by_class = {name for kind, name in _CODES_OF_CLASSES if isinstance(error, kind)}
    return by_class | set(_CODE.findall(str(error))) if isinstance(error, redis.exceptions.ResponseError) else by_class


def part_of(client: RedisClient, key: str) -> str:
    """Which server has the key, where there are several: what waits for one must not hold up what another could do."""
    return client.server_of(key) if isinstance(client, ClusterClient) else ""


def spans_slots(client: RedisClient) -> bool:
    """Whether keys lie in slots, so that no command takes those of two."""
    return isinstance(client, ClusterClient)


async def drop_idle(client: RedisClient) -> None:
    """Close the idle connections, so that the next command looks up anew which server to talk to."""
    pool = getattr(client, "connection_pool", None)  # a Redis Cluster client has none, and follows redirections instead
    if pool is not None:
        await pool.disconnect(inuse_connections=False)
