"""The Redis directory behind Sentinel: a failover is followed, and its epochs stay above those given before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis.exceptions

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.directory_scripts import RUN_JUMP
from silo.directory.errors import DirectoryUnavailable
from silo.directory.redis_connection import open_sync
from silo.directory.redis_directory import RedisDirectory
from silo.embedded import EmbeddedServer, find_server, free_port
from tests.support.redis_server import ask_until, server_for_tests

pytestmark = pytest.mark.redis

ADA = GrainId("player", "ada")
ONE = SiloAddress("10.0.0.1:7000", 1)
FAILOVER_WITHIN_S = 20.0


def ask(url: str, *command: str | int) -> Any:
    with contextlib.closing(cast("Any", open_sync(url, 1.0))) as client:
        return client.execute_command(*command)


@pytest.fixture
def master() -> Iterator[EmbeddedServer]:
    with server_for_tests(arguments=["--repl-diskless-sync-delay", "0"]) as server:
        yield server


@pytest.fixture
def replica(master: EmbeddedServer) -> Iterator[EmbeddedServer]:
    with server_for_tests(arguments=["--replicaof", "127.0.0.1", str(master.port)]) as server:
        ask_until(lambda: ask(master.url, "WAIT", 1, 10) == 1)
        yield server


@pytest.fixture
def sentinel_url(master: EmbeddedServer, replica: EmbeddedServer, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
    )
    program = os.environ.get("SILO_TEST_REDIS_SERVER") or str(find_server())
    log = (tmp_path / "sentinel.log").open("wb")
    with log, subprocess.Popen([program, str(configuration), "--sentinel"], stdout=log, stderr=log) as sentinel:
        try:
            ask_until(lambda: knows_a_replica(f"redis://127.0.0.1:{port}"))
            yield f"redis+sentinel://127.0.0.1:{port}/main"
        finally:
            sentinel.terminate()


def knows_a_replica(url: str) -> bool:
    try:
        return bool(ask(url, "SENTINEL REPLICAS", "main"))
    except redis.exceptions.ConnectionError:  # not yet listening
        return False


@pytest.fixture
async def directory(sentinel_url: str) -> AsyncIterator[RedisDirectory]:
    opened = RedisDirectory.at(sentinel_url, "here")
    await opened.open()
    yield opened
    await opened.close()


async def test_a_failover_is_followed_and_jumps_epochs(
    directory: RedisDirectory, master: EmbeddedServer, replica: EmbeddedServer
) -> None:
    (entry,) = await directory.register([Registration(ADA, ONE, "a1")])
    assert entry is not None
    ask_until(lambda: ask(replica.url, "DBSIZE") == 2)  # entries and head of the bucket have arrived
    await asyncio.to_thread(master.kill)

    async def moved() -> Entry | None:
        while True:
            with contextlib.suppress(DirectoryUnavailable):
                (row,) = await directory.register([Registration(ADA, ONE, "a2", expected=entry)])
                return row

    row = await asyncio.wait_for(moved(), FAILOVER_WITHIN_S)
    assert row == Entry(ADA, ONE, "a2", entry.epoch + RUN_JUMP + 1)
    assert ask(replica.url, "ROLE")[0] == b"master"


def test_a_blocking_client_finds_the_master(sentinel_url: str, master: EmbeddedServer) -> None:
    with contextlib.closing(cast("Any", open_sync(sentinel_url, 1.0))) as client:
        assert client.info("server")["tcp_port"] == master.port
