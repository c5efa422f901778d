"""Sockets of the direct lane: who finds them, who is kept out, and what becomes of those that were left behind."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from silo.directory.errors import EndpointUnusable
from silo.messaging.local_transport import LocalTransport
from silo.messaging.transport import Connection, ConnectionLost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "s"


async def wait(connection: Connection) -> None:
    while await connection.read() is not None:
        pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def set_mode(folder: Path, bits: int) -> None:
    folder.chmod(bits)


@asynccontextmanager
async def listening(folder: Path) -> AsyncGenerator[str]:
    transport = LocalTransport(folder)
    listener = await transport.listen("", wait)
    try:
        yield listener.endpoint
    finally:
        await listener.close()
        await transport.close()


async def test_the_folder_is_closed_to_others_and_the_socket_goes_with_its_listener(folder: Path) -> None:
    async with listening(folder) as endpoint:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert names(folder) == {endpoint}
        assert LocalTransport(folder).reaches(endpoint)
    assert names(folder) == set()
    assert not LocalTransport(folder).reaches(endpoint)


async def test_a_socket_is_found_in_the_own_folder_alone(folder: Path, tmp_path: Path) -> None:
    async with listening(folder) as endpoint:
        elsewhere = LocalTransport(tmp_path / "elsewhere")
        assert not elsewhere.reaches(endpoint)
        with pytest.raises(ConnectionLost, match="elsewhere"):
            await elsewhere.dial(endpoint)


@pytest.mark.parametrize("name", ["../agent.sock", "/run/agent.sock", "agent.sock", ""])
async def test_no_peer_names_a_socket_that_is_no_silos(folder: Path, name: str) -> None:
    async with listening(folder):
        with socket.socket(socket.AF_UNIX) as agent:
            agent.bind(str(folder / "agent.sock"))
            agent.listen()
            with pytest.raises(ConnectionLost):
                await LocalTransport(folder).dial(name)


async def test_a_folder_that_others_may_look_into_is_not_used(folder: Path) -> None:
    async with listening(folder) as endpoint:
        set_mode(folder, 0o750)
        assert not LocalTransport(folder).reaches(endpoint)
        with pytest.raises(EndpointUnusable, match="is not this user's alone"):
            await LocalTransport(folder).listen("", wait)
        set_mode(folder, 0o700)


async def test_a_link_to_a_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    os.symlink(tmp_path / "real", folder)
    with pytest.raises(EndpointUnusable, match="is not this user's alone"):
        await LocalTransport(folder).listen("", wait)


async def test_a_path_that_is_too_long_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(EndpointUnusable, match="too long for a socket"):
        await LocalTransport(tmp_path / ("x" * 100)).listen("", wait)


async def test_what_a_killed_process_left_is_swept_and_what_lives_is_not(folder: Path) -> None:
    async with listening(folder) as living:
        left = folder / "1-0000000000000001.sock"
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(left))
            async with listening(folder):
                assert left.exists(), "whoever is about to listen on it lives"
        assert left.exists()  # closed as a kill does it
        async with listening(folder) as third:
            assert names(folder) == {living, third}
