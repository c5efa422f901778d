"""The embedded server: real, ready when started, gone when stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from silo.directory.redis_connection import open_sync
from silo.embedded import EmbeddedServer, EmbeddedServerFailed, find_server
from tests.support.redis_server import operator, server_for_tests

pytestmark = pytest.mark.redis

ENDED_WITHIN_S = 10.0


def talking_to(url: str) -> contextlib.closing[Any]:
    return contextlib.closing(cast("Any", open_sync(url, 1.0)))


@contextlib.contextmanager
def ending_of(pid: int) -> Generator[None]:
    """Watch a process; the block's end waits until the process has ended."""
    watch = os.pidfd_open(pid)
    try:
        yield
        ended, _, _ = select.select([watch], [], [], ENDED_WITHIN_S)
        assert ended, f"process {pid} still runs"
    finally:
        os.close(watch)


def test_it_answers_when_started_on_tcp_and_unix_socket_and_ends_when_stopped() -> None:
    server = server_for_tests()
    server.start()
    with ending_of(server.pid):
        for url in (server.url, server.unix_url):
            with talking_to(url) as client:
                assert client.ping() is True
        server.stop()
    assert not server.is_running
    with pytest.raises(EmbeddedServerFailed, match="not started"):
        _ = server.url
    server.stop()  # harmless


async def test_it_is_an_async_context_too() -> None:
    async with server_for_tests() as server, operator(server.url) as client:
        assert await client.ping() is True


@pytest.mark.parametrize("appendonly", [False, True])
def test_a_restart_keeps_what_was_written_and_the_address(appendonly: bool) -> None:
    with server_for_tests(appendonly=appendonly) as server, talking_to(server.url) as client:
        url, pid = server.url, server.pid
        client.set("written", "before")
        server.restart()
        assert (server.url, server.pid == pid) == (url, False)
        assert client.get("written") == b"before"


def test_with_appendonly_a_crash_keeps_what_was_answered() -> None:
    with server_for_tests(appendonly=True) as server, talking_to(server.url) as client:
        client.set("written", "before")
        server.kill()
        assert not server.is_running
        server.restart()
        assert client.get("written") == b"before"


def test_a_server_that_is_frozen_is_stopped_all_the_same() -> None:
    server = EmbeddedServer(stop_timeout_s=0.2)
    server.start()
    with ending_of(server.pid):
        os.kill(server.pid, signal.SIGSTOP)
        server.stop()


def test_a_server_that_ended_by_itself_can_be_stopped() -> None:
    with server_for_tests() as server, ending_of(server.pid):
        os.kill(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_the_process_that_started_it(death: signal.Signals, tmp_path: Path) -> None:
    program = (
        "import threading, time\n"
        "from silo.embedded import EmbeddedServer\n"
        "server = EmbeddedServer()\n"
        "starter = threading.Thread(target=server.start)\n"  # the thread that starts it ends long before
        "starter.start(); starter.join()\n"
        "print(server.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # whose directory nobody removes
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    with owner, ending_of(int(owner.stdout.readline())):
        owner.send_signal(death)


def test_two_servers_live_side_by_side() -> None:
    with server_for_tests() as one, server_for_tests() as two:
        assert one.port != two.port


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedServer(port=taken.getsockname()[1])
        with pytest.raises(EmbeddedServerFailed, match=r"(?i)address already in use"):
            server.start()
    assert not server.is_running


def test_a_server_that_refuses_its_arguments_is_a_clear_error() -> None:
    with pytest.raises(EmbeddedServerFailed, match="no-such-option"):
        server_for_tests(arguments=["--no-such-option", "1"]).start()


def test_a_given_directory_stays(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, appendonly=True) as server, talking_to(server.url) as client:
        client.set("written", "before")
    with EmbeddedServer(directory=tmp_path, appendonly=True) as server, talking_to(server.url) as client:
        assert client.get("written") == b"before"


def _find_nothing(name: str) -> None:
    """As if no package were installed."""


def test_where_there_is_no_server_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", _find_nothing)
    with pytest.raises(EmbeddedServerFailed, match=r"grain-silo\[embedded\]"):
        find_server()


def test_without_the_extra_a_server_on_the_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path = tmp_path / "redis-server"
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", _find_nothing)
    assert find_server() == on_path
