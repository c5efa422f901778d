"""Rows of the directory that come as a test wants them: late, or as an error, for one silo alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from silo.directory.addresses import Entry
from silo.directory.errors import NotExecuted

OnRow = Callable[[Entry | Exception | None], None]
Question = TypeVar("Question")


def in_a_task(ask: Callable[[Question], Awaitable[Entry | None]]) -> Callable[[Question, OnRow], None]:
    """What may stand in the place of `Registrar.look_up` or `register_soon`: asks this, which may take its time."""
    asking: set[asyncio.Task[None]] = set()

    async def answer(question: Question, on_row: OnRow) -> None:
        try:
            row: Entry | Exception | None = await ask(question)
        except NotExecuted as error:
            row = error
        on_row(row)

    def begin(question: Question, on_row: OnRow) -> None:
        task = asyncio.get_running_loop().create_task(answer(question, on_row))
        asking.add(task)
        task.add_done_callback(asking.discard)

    return begin
