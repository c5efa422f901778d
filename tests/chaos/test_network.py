"""The doors of the chaos bench: what is done to the road between two parties befalls these two and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.network import Network
from tests.support.waiting import until

SILO, CALLER, OTHER, REDIS = "silo-1", "caller-1", "caller-2", "redis"
LIMIT_S = 5.0


class Dialler:
    """One connection of one party."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def asks(self, words: bytes) -> bytes:
        """Send something and wait for as much."""
        self.writer.write(words)
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.readexactly(len(words))


@asynccontextmanager
async def echoing(
    network: Network, listener: str, dialler: str | None = None, heard: bytearray | None = None
) -> AsyncGenerator[int]:
    """A party that says back what it hears; gives the port of the door to it.

    Args:
        heard: where it notes that.
    """

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while words := await reader.read(1024):
                if heard is not None:
                    heard.extend(words)
                writer.write(words)
        except ConnectionError:
            pass  # it was reset
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield await network.door(listener, "127.0.0.1", server.sockets[0].getsockname()[1], dialler=dialler)


async def dial(port: int) -> Dialler:
    return Dialler(*await asyncio.open_connection("127.0.0.1", port))


@asynccontextmanager
async def two_callers(network: Network) -> AsyncGenerator[tuple[Dialler, Dialler]]:
    """Two callers that have greeted a silo."""
    for party in (SILO, CALLER, OTHER):
        network.know(party, f"{party}@")
    async with echoing(network, SILO) as port:
        callers = (await dial(port), await dial(port))
        for name, caller in zip((CALLER, OTHER), callers, strict=True):
            assert await caller.asks(f"hello {SILO}@, here is {name}@".encode())
        yield callers
        for caller in callers:
            caller.writer.close()


async def test_a_blocked_road_holds_what_is_sent_and_lets_it_pass_when_it_is_cleared() -> None:
    async with Network() as network, two_callers(network) as (caller, other):
        network.road(CALLER, SILO).block()
        asking = asyncio.create_task(caller.asks(b"held"))
        assert await other.asks(b"free") == b"free"
        assert not asking.done()
        network.road(CALLER, SILO).clear()
        assert await asking == b"held"


async def test_a_road_that_is_blocked_one_way_is_open_the_other_way() -> None:
    heard = bytearray()
    async with Network() as network, echoing(network, REDIS, SILO, heard) as port:
        silo = await dial(port)
        network.road(REDIS, SILO).block()
        asking = asyncio.create_task(silo.asks(b"words"))
        await until(lambda: bytes(heard) == b"words")
        assert not asking.done()
        network.road(REDIS, SILO).clear()
        assert await asking == b"words"
        silo.writer.close()


async def test_the_first_words_of_a_new_connection_are_held_too() -> None:
    async with Network() as network:
        network.know(CALLER, f"{CALLER}@")
        async with echoing(network, SILO) as port:
            network.road(CALLER, SILO).block()
            caller = await dial(port)
            asking = asyncio.create_task(caller.asks(f"here is {CALLER}@".encode()))
            stranger = await dial(port)
            assert await stranger.asks(b"here is nobody") == b"here is nobody"
            assert not asking.done()
            network.heal()
            assert await asking
            caller.writer.close()
            stranger.writer.close()


async def test_an_answer_is_lost_once_and_its_connection_with_it() -> None:
    async with Network() as network, two_callers(network) as (caller, other):
        network.road(SILO, CALLER).answers_to_lose = 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await caller.asks(b"lost")
        assert await other.asks(b"free") == b"free"
        assert network.answers_lost == 1


async def test_a_reset_ends_the_connections_between_two_parties_whoever_dialled() -> None:
    async with Network() as network, two_callers(network) as (caller, other):
        assert network.reset(SILO, CALLER) == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await caller.asks(b"gone")
        assert await other.asks(b"free") == b"free"
        assert network.reset(CALLER, SILO) == 0


async def test_a_delay_holds_each_piece_back_for_so_long() -> None:
    async with Network() as network, echoing(network, REDIS, dialler=SILO) as port:
        network.road(SILO, REDIS).delay_s = network.road(REDIS, SILO).delay_s = 0.05
        silo = await dial(port)
        began = asyncio.get_running_loop().time()
        assert await silo.asks(b"slowly") == b"slowly"
        assert asyncio.get_running_loop().time() - began >= 0.1
        silo.writer.close()


async def test_where_nobody_listens_the_dialler_is_told() -> None:
    async with Network() as network:
        async with echoing(network, SILO) as port:
            pass
        caller = await dial(port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await caller.asks(b"hello")
        caller.writer.close()
