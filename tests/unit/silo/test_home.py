"""A client is used on its own loop, in its own process, or says so before anything is sent. S113."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pytest

from silo.directory.errors import ClientMisused
from silo.home import Home


def test_S113_a_client_is_at_home_on_the_loop_that_opened_it_and_nowhere_else() -> None:
    home = Home("client-1")
    home.check()  # not opened yet: it may be made anywhere

    async def settle() -> None:
        home.settle()
        home.check()
        with pytest.raises(ClientMisused, match="client-1 lives on another event loop"):
            await asyncio.to_thread(home.check)

    async def use() -> None:
        home.check()

    asyncio.run(settle())
    with pytest.raises(ClientMisused, match="another event loop"):
        asyncio.run(use())
    with pytest.raises(ClientMisused, match="another event loop"):
        asyncio.run(settle())


def test_S113_a_client_that_a_forked_process_inherited_says_so_and_sends_nothing() -> None:
    script = """
        import asyncio, os, sys
        from silo import Client, ClientMisused, Grain, grain

        @grain(kind="room")
        class Room(Grain):
            async def enter(self) -> None: ...

        async def main() -> None:
            async with Client.connect(gateways=["127.0.0.1:9"]) as client:
                if child := os.fork():
                    _, status = os.waitpid(child, 0)
                    sys.exit(os.waitstatus_to_exitcode(status))
                try:
                    await client.grain(Room, "lobby").enter()
                except ClientMisused as error:
                    print(error, len(vars(client)["_book"]), flush=True)
                    os._exit(7)
                os._exit(1)

        asyncio.run(main())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.returncode, ran.stderr) == (7, "")
    assert "forked from" in ran.stdout
    assert ran.stdout.endswith(" 0\n")
