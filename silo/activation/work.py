"""What a grain has under way beside its turns: tasks, timers, and reasons not to be moved just now."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from silo.activation.timers import Timers
from silo.directory.errors import InvalidGrain
from silo.logs import get_logger
from silo.routing.call import Call

if TYPE_CHECKING:
    from silo.activation.activation import Activation

log = get_logger(__name__)

T = TypeVar("T")

TASKS_MAX = 1024
"""The most tasks that one activation may have running."""
TASK_END_S = 1.0
"""How long tasks that were cancelled may take to end, before their grain ends or moves without them."""


class GrainWork:
    """The tasks, timers and blocks of one activation; made when the first of them is."""

    __slots__ = ("_activation", "_blocks", "_tasks", "_unblocked", "timers")

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._tasks: set[asyncio.Task[Any]] = set()
        self._blocks: list[str] = []
        self._unblocked: asyncio.Future[None] | None = None
        self.timers = Timers(activation)

    # ---------------------------------------------------------------------------------------------------------- tasks

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        """Run a coroutine as the grain's own, until it ends or the activation does."""
        if len(self._tasks) >= TASKS_MAX:
            coroutine.close()
            raise InvalidGrain(f"{self._activation.id} has {TASKS_MAX} tasks running, as many as a grain may")
        task = self._activation.own_task(coroutine, name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("grain.task_failed", grain=str(self._activation.id), task=task.get_name(), exc_info=error)
        self._activation.work_ended()

    def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def end_tasks(self) -> None:
        """Cancel the tasks and wait for them; one that will not end is left behind, and may do nothing any more."""
        if not self._tasks:
            return
        self.cancel_tasks()
        _, left = await asyncio.wait(tuple(self._tasks), timeout=TASK_END_S)
        if left:
            log.warning("grain.tasks_left_behind", grain=str(self._activation.id), tasks=len(left))

    # --------------------------------------------------------------------------------------------------------- blocks

    @property
    def block(self) -> str:
        """Why the grain must not be moved now; empty where it may."""
        return self._blocks[-1] if self._blocks else ""

    @contextmanager
    def blocked(self, why: str) -> Generator[None]:
        self._blocks.append(why)
        try:
            yield
        finally:
            self._blocks.remove(why)
            if not self._blocks and self._unblocked is not None and not self._unblocked.done():
                self._unblocked.set_result(None)

    async def unblocked(self) -> None:
        """Wait until nothing speaks against a move."""
        while self._blocks:
            if self._unblocked is None or self._unblocked.done():
                self._unblocked = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._unblocked)

    # ----------------------------------------------------------------------------------------------------------- ends

    def abandon(self, waiting: Iterable[Call]) -> list[Call]:
        """The activation serves no more, for now or for good. Answers with the calls that may go elsewhere."""
        self.cancel_tasks()
        self.timers.rest()
        return self.timers.take_back(waiting)
