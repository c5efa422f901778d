"""Callbacks, tasks and futures of the virtual-time loop, what can be told of them, and how tasks are put away."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from silo.testing.nodes import Node

T = TypeVar("T")
FINALLY_BLOCKS_MAX = 50
"""How many waits in nested `finally` blocks are cut short when a task is put away unfinished."""

_Task: Final = asyncio.Task


class Callback(asyncio.Handle):
    """A callback that is to run: what asyncio's own handle is, without what that does for its debug mode."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "order")
    order: int
    """Its place among all callbacks of the loop that wait to run."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'cancelled' if self.is_cancelled else name_of(self.callback)}>"

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def get_context(self) -> contextvars.Context:
        return self.context


class Timer(asyncio.TimerHandle):
    """A callback that is to run at some time."""

    __slots__ = ("_at", "_on_cancel", "args", "callback", "context", "is_cancelled", "node", "order")
    order: int
    """As a callback's, once it is due."""

    def __init__(
        self,
        at: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        node: Node,
        on_cancel: Callable[[], None],
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False
        self.node = node
        self._at = at
        self._on_cancel = on_cancel

    def __repr__(self) -> str:
        return f"<Timer at {self._at}, {'cancelled' if self.is_cancelled else name_of(self.callback)}>"

    def when(self) -> float:
        return self._at

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback, self.args = _nothing, ()
            self._on_cancel()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def get_context(self) -> contextvars.Context:
        return self.context


def _nothing() -> None:
    """What is left of a callback that was cancelled: what it held is let go."""


def name_of(callback: object) -> str:
    """What a callback is called in a trace: by the task of which it is a step, or as the function that it is."""
    owner: object = getattr(callback, "__self__", None)
    if isinstance(owner, _Task):
        return owner.get_name()
    name: str = getattr(callback, "__qualname__", None) or type(callback).__name__
    return name


class NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number, so that a set of tasks has the same order in each run.

    Args:
        node: the name of the node to which it belongs.
    """

    def __init__(self, number: int, node: str, coro: Coroutine[Any, Any, T], *, name: str, **options: Any) -> None:
        self._number = number
        self._node = node
        self.line = trace_line(node, name)
        """What the trace takes in for each of its steps."""
        super().__init__(coro, name=name, **options)

    def set_name(self, value: object) -> None:
        super().set_name(value)
        self.line = trace_line(self._node, self.get_name())

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[T]):
    """Likewise a future, once the loop has numbered it."""

    number: int

    def __hash__(self) -> int:
        return self.number


def trace_line(node: str, what: str) -> bytes:
    """One step as the trace takes it in, its time aside."""
    return f"{node} {what}\n".encode()


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
    _forget_arguments(coroutine)
    _close(coroutine)


def _close(coroutine: Any) -> None:
    """Close a coroutine, and before it what it awaits, each for as often as it waits again.

    Closed from the outside alone, one within that waits in its `finally` block would be left there for the collector,
    which has nobody but the terminal to tell that it would not end.
    """
    for _ in range(FINALLY_BLOCKS_MAX):
        awaited = getattr(coroutine, "cr_await", None)
        if inspect.iscoroutine(awaited):
            _close(awaited)
        try:
            coroutine.close()
        except RuntimeError:  # it waits in a `finally` block: close it there too
            continue
        except (Exception, asyncio.CancelledError, BaseExceptionGroup):  # nobody is left to be told: its node is gone
            return
        return


def _forget_arguments(coroutine: Any) -> None:
    """Close what a coroutine that never began was to await.

    From Python 3.12 on its own end leaves that open, and whoever collects it would hear that it was never awaited.
    """
    if not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
        return
    frame = coroutine.cr_frame
    for value in list(frame.f_locals.values()) if frame is not None else ():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            _forget_arguments(value)
            value.close()
