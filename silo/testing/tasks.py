"""Tasks and futures of the virtual-time loop, what can be told of them, and how unfinished ones are put away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
FINALLY_BLOCKS_MAX = 50
"""How many waits in nested `finally` blocks are cut short when a task is put away unfinished."""


class NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number, so that a set of tasks has the same order in each run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, T], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[T]):
    """Likewise a future."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def describe_task(task: asyncio.Task[Any]) -> str:
    """A task's name and the chain of functions that waits in it, outermost first."""
    return f"{task.get_name()}: " + (" > ".join(_frames(task.get_coro())) or "not started")


def _frames(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def put_away(task: asyncio.Task[Any]) -> None:
    """End an unfinished task in silence: its `finally` blocks run, and are cut short where they wait."""
    task._log_destroy_pending = False  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - as asyncio.gather does
    coroutine: Any = task.get_coro()
    for _ in range(FINALLY_BLOCKS_MAX):
        try:
            coroutine.close()
        except RuntimeError:  # it waits in a `finally` block: close it there too
            continue
        except (Exception, asyncio.CancelledError):  # its node is gone, or the run is over: nobody is left to be told
            return
        return
