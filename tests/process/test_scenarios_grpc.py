"""Clients in many loops and threads of one process, against a real silo; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from silo.client import Client
from silo.directory.errors import ClientMisused
from tests.process.grains import Counter
from tests.process.stage import Stage

ROUNDS = 20
WITHIN_S = 10.0


async def call_once(stage: Stage) -> int:
    async with stage.client() as client:
        return await client.grain(Counter, "k").read()


def in_loops_of_its_own(stage: Stage) -> list[int]:
    """Call with a fresh client on a fresh loop, again and again."""
    return [asyncio.run(call_once(stage)) for _ in range(ROUNDS)]


async def test_S113_each_loop_in_each_thread_may_have_a_client_of_its_own(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage:
        await stage.start("silo-1")
        async with asyncio.timeout(6 * WITHIN_S), stage.client() as client:
            threads = [asyncio.to_thread(in_loops_of_its_own, stage) for _ in range(2)]
            assert await asyncio.gather(*threads) == [[0] * ROUNDS] * 2
            assert await client.grain(Counter, "k").read() == 0


async def test_S113_a_client_that_is_used_on_another_loop_raises_and_goes_on_on_its_own(
    make_stage: Callable[..., Stage],
) -> None:
    def misuse(client: Client) -> None:
        async def call() -> None:
            async with asyncio.timeout(WITHIN_S):
                await client.grain(Counter, "k").read()

        asyncio.run(call())

    async with make_stage() as stage:
        await stage.start("silo-1")
        async with stage.client() as client:
            assert await client.grain(Counter, "k").read() == 0
            with pytest.raises(ClientMisused, match="another event loop"):
                await asyncio.to_thread(misuse, client)
            assert len(vars(client)["_book"]) == 0  # nothing was sent
            async with asyncio.timeout(WITHIN_S):
                assert await client.grain(Counter, "k").read() == 0
