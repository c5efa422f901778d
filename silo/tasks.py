"""Tasks that have an owner: it is told when one fails, and it awaits them all at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from silo.logs import get_logger

log = get_logger(__name__)

CANCEL_AGAIN_S = 0.2
"""After how long a task that was cancelled and still runs is cancelled again."""


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended.

    A cancellation can get lost: before Python 3.12, `asyncio.wait_for` drops one that arrives just as the thing that it
    waits for is done, and Redis's client sends its commands by it. So whatever goes on is told again.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)


def is_being_cancelled() -> bool:
    """Whether it is the running task that is cancelled, where a CancelledError comes up: code that it called may have
    raised one as an error like others."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Tasks:
    """The running tasks of one part of the runtime.

    A task that ends with an exception is logged at once, with its name: none of them is meant to.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._owner}: {name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        me = asyncio.current_task()
        await cancelled(task for task in self._running if task is not me)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.failed", task=task.get_name(), exc_info=error)
