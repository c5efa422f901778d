"""Waiting for what nothing announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNTIL_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.005


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; fails after UNTIL_TIMEOUT_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + UNTIL_TIMEOUT_S
    while not condition():
        assert loop.time() < deadline, "the condition that the test waits for did not come about"
        await asyncio.sleep(LOOK_EVERY_S)
