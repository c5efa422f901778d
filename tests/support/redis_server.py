"""Servers for tests: the embedded one, or the program whose path SILO_TEST_REDIS_SERVER gives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
import redis.asyncio

from silo.embedded import EmbeddedServer

ASK_TIMEOUT_S = 10.0
ASK_EVERY_S = 0.02


def server_for_tests(*, appendonly: bool = False, arguments: Sequence[str] = ()) -> EmbeddedServer:
    """A server of the kind that this run tests against; not yet started."""
    executable = os.environ.get("SILO_TEST_REDIS_SERVER") or None
    return EmbeddedServer(executable=executable, appendonly=appendonly, arguments=arguments)


def operator(url: str) -> Any:
    """An asyncio client for tests: what somebody with redis-cli sees and does. Untyped, as half of redis-py is."""
    return cast("Any", redis.asyncio.Redis).from_url(url)


def ask_until(answer: Callable[[], bool]) -> None:
    """Ask a server until it says yes: for what it does in its own time and tells nobody; fails after ASK_TIMEOUT_S."""
    deadline = time.monotonic() + ASK_TIMEOUT_S
    while not answer():
        assert time.monotonic() < deadline, "the server did not come to the state that the test waits for"
        time.sleep(ASK_EVERY_S)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedServer]:
    """One server for the whole session: for tests with a cluster name of their own that leave the server alone."""
    with server_for_tests() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: EmbeddedServer) -> str:
    return redis_server.url


@pytest.fixture
def own_redis_server() -> Iterator[EmbeddedServer]:
    """A server for one test, which may flush, configure, restart, stop and kill it."""
    with server_for_tests() as server:
        yield server


@contextmanager
def standing_still(server: EmbeddedServer) -> Generator[None]:
    """The server neither answers nor hangs up, for exactly as long as the block takes."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
