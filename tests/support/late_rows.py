"""Rows of the directory that come as a test wants them: late, or as an error, for one silo alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from silo.directory.addresses import Entry, GrainId
from silo.directory.errors import NotExecuted

OnRow = Callable[[Entry | Exception | None], None]


def in_a_task(lookup: Callable[[GrainId], Awaitable[Entry | None]]) -> Callable[[GrainId, OnRow], None]:
    """What may stand in the place of `Registrar.look_up`: asks this, which may take its time."""
    asking: set[asyncio.Task[None]] = set()

    async def ask(grain: GrainId, on_row: OnRow) -> None:
        try:
            row: Entry | Exception | None = await lookup(grain)
        except NotExecuted as error:
            row = error
        on_row(row)

    def look_up(grain: GrainId, on_row: OnRow) -> None:
        task = asyncio.get_running_loop().create_task(ask(grain, on_row))
        asking.add(task)
        task.add_done_callback(asking.discard)

    return look_up
