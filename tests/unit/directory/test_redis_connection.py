"""Redis URLs, and which errors of a server are worth another try."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from silo.directory.errors import DirectoryUnavailable, InvalidSettings
from silo.directory.redis_connection import (
    COMMAND_TIMEOUT_S,
    TRIES_MAX,
    asked,
    drop_idle,
    error_codes,
    is_transient,
    open_redis,
    open_sync,
    parse_url,
)
from tests.support.waiting import until


@pytest.mark.parametrize(
    "url",
    ["redis://h:1/2", "rediss://u:p@h", "unix:///run/redis.sock?db=1"],
)
def test_urls_of_one_server_are_read_as_redis_py_reads_them(url: str) -> None:
    assert parse_url(url).mode == "server"


def test_a_sentinel_url_names_sentinels_service_and_login() -> None:
    target = parse_url("rediss+sentinel://ann:p%40ss@s1:1,s2,[::1]:3/main/4?client_name=x")
    assert (target.mode, target.service) == ("sentinel", "main")
    assert target.hosts == (("s1", 1), ("s2", 26379), ("::1", 3))
    assert target.options == {"client_name": "x", "db": 4, "username": "ann", "password": "p@ss", "ssl": True}


def test_a_cluster_url_names_nodes_to_begin_with() -> None:
    target = parse_url("redis+cluster://:pw@n1,n2:7001")
    assert (target.mode, target.hosts) == ("cluster", (("n1", 6379), ("n2", 7001)))
    assert target.options == {"password": "pw"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "scheme"),
        ("localhost:6379", "scheme"),
        ("redis+sentinel://h", "SERVICE"),
        ("redis+sentinel://h/s/notanumber", "notanumber"),
        ("redis+cluster://h/0", "databases"),
        ("redis+cluster://", "host:port"),
        ("redis://h:port", "port"),
        ("redis://h?socket_timeout=x", "socket_timeout"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=reason):
        open_redis(url)
    with pytest.raises(InvalidSettings, match=reason):
        open_sync(url, 1.0)


def test_passwords_are_not_shown() -> None:
    assert parse_url("redis+sentinel://u:secret@h/s").public == "redis+sentinel://h/s"
    with pytest.raises(InvalidSettings) as refused:
        parse_url("http://u:secret@h")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        redis.ConnectionError("gone"),
        redis.TimeoutError("late"),
        BusyLoadingError("Redis is loading the dataset in memory"),
        MaxConnectionsError("Too many connections"),
        ReadOnlyError("You can't write against a read only replica."),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ClusterDownError("The cluster is down"),
        ResponseError("BUSY Redis is busy running a script."),
        ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk."),
        ResponseError("NOREPLICAS Not enough good replicas to write."),
        ResponseError("Error running script (call to f_1): @user_script:5: @user_script: 5: -READONLY You can't write"),
    ],
)
def test_S103_what_may_pass_is_tried_again(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("invalid username-password pair"),
        NoPermissionError("this user has no permissions to run the 'info' command"),
        ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        ResponseError("SILO the epochs of x are used up"),
        ValueError("a mistake of ours that mentions BUSY things"),
    ],
)
def test_S103_what_will_not_pass_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)


def test_codes_are_found_in_front_and_within() -> None:
    assert error_codes(ResponseError("BUSY Redis is busy")) == {"BUSY"}
    assert error_codes(ResponseError("script: -OOM command not allowed")) == {"OOM"}
    assert error_codes(ReadOnlyError("You can't")) == {"READONLY"}


class TestTries:
    @pytest.fixture
    async def client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis()

    async def test_tries_are_bounded_and_end_in_a_typed_error(self, client: redis.asyncio.Redis) -> None:
        tries = 0

        async def fail() -> None:
            nonlocal tries
            tries += 1
            raise redis.ConnectionError("gone")

        with pytest.raises(DirectoryUnavailable, match="asking: ConnectionError: gone") as caught:
            await asked(client, "asking", fail)
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert tries == TRIES_MAX

    async def test_a_lasting_error_is_tried_once(self, client: redis.asyncio.Redis) -> None:
        tries = 0

        async def fail() -> None:
            nonlocal tries
            tries += 1
            raise ResponseError("WRONGTYPE no")

        with pytest.raises(DirectoryUnavailable):
            await asked(client, "asking", fail)
        assert tries == 1

    async def test_a_mistake_of_ours_is_not_called_unavailability(self, client: redis.asyncio.Redis) -> None:
        async def fail() -> None:
            raise KeyError("a bug")

        with pytest.raises(KeyError):
            await asked(client, "asking", fail)


def test_a_blocking_client_talks_to_the_server(redis_url: str) -> None:
    with contextlib.closing(open_sync(redis_url, 1.0)) as client:
        assert cast("Any", client).ping() is True


async def test_a_connection_that_uvloop_finds_closed_is_one_that_was_lost() -> None:
    tries: list[int] = []

    async def ask() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
        return "answer"

    client = open_redis("redis://127.0.0.1:1")
    try:
        assert await asked(client, "asking", ask) == "answer"
    finally:
        await client.aclose()
    assert len(tries) == 2


@pytest.mark.redis
async def test_a_command_is_sent_and_answered_without_a_task_of_its_own(redis_url: str) -> None:
    client, loop = open_redis(redis_url), asyncio.get_running_loop()
    made: list[object] = []

    def make(_: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, **options)

    try:
        await client.execute_command("PING")  # it connects
        loop.set_task_factory(make)
        assert await client.execute_command("ECHO", "here") == b"here"
        assert not made
    finally:
        loop.set_task_factory(None)
        await client.aclose()


@pytest.mark.redis
async def test_a_connection_that_the_server_has_closed_is_used_for_no_command(redis_url: str) -> None:
    client, other = open_redis(redis_url), open_redis(redis_url)
    try:
        own = await client.execute_command("CLIENT", "ID")
        assert await client.execute_command("CLIENT", "ID") == own  # it is kept at hand
        assert await other.execute_command("CLIENT", "KILL", "ID", own) == 1
        connection = cast("Any", client).connection_pool._at_hand[0]
        await until(connection._reader.at_eof)
        assert await client.execute_command("CLIENT", "ID") != own
    finally:
        await client.aclose()
        await other.aclose()


@pytest.mark.redis
async def test_what_is_at_hand_is_there_for_pipelines_and_for_whoever_waits(redis_url: str) -> None:
    client = open_redis(f"{redis_url}?max_connections=1")

    async def one_by_pipeline() -> object:
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command("ECHO", "b")
        return await pipeline.execute()

    async def one() -> object:
        return await client.execute_command("ECHO", "a")

    try:
        answers = await asyncio.gather(*(each() for _ in range(20) for each in (one, one_by_pipeline)))
        assert answers == [b"a", [b"b"]] * 20
    finally:
        await client.aclose()


@pytest.mark.redis
async def test_what_is_at_hand_is_closed_with_all_that_is_idle(redis_url: str) -> None:
    client = open_redis(redis_url)
    try:
        own = await client.execute_command("CLIENT", "ID")
        await drop_idle(client)
        assert await client.execute_command("CLIENT", "ID") != own
    finally:
        await client.aclose()


async def test_a_write_that_does_not_come_to_an_end_is_given_up_in_time() -> None:
    async def greet_and_read_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(b"+OK\r\n" * 2)  # to CLIENT SETINFO of name and version
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(greet_and_read_no_more, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = open_redis(f"redis://{host}:{port}")
    loop = asyncio.get_running_loop()
    try:
        began = loop.time()
        # Python 3.12 before .8 and 3.13 before .1 take in what is written, however much it is: the answer is missing.
        with pytest.raises(RedisTimeoutError, match=r"writing|reading"):
            await client.execute_command("SET", "large", bytes(64 * 2**20))
        assert COMMAND_TIMEOUT_S - 0.1 < loop.time() - began < COMMAND_TIMEOUT_S + 3.0
    finally:
        await client.aclose()
        ended.set()
        server.close()
        await server.wait_closed()
