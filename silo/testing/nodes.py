"""Simulated processes: everything that runs for a node is known by its context, and can be frozen or stopped dead.

A node is told by a context variable. Tasks, callbacks and timers inherit the context in which they were made, so
whatever a node starts belongs to it, and the loop need not be told.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from silo.testing.tasks import Callback, Timer, name_of, trace_line

P = ParamSpec("P")
T = TypeVar("T")


class NodeState(enum.Enum):
    """What a simulated process is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    """As after SIGSTOP: nothing of it runs, while what comes in for it waits."""
    KILLED = "killed"
    """As after SIGKILL: nothing of it will ever run again, not even its `finally` blocks."""


class NodeKilled(Exception):
    """The node that was to do something was killed before it had."""


class NodeLoop(Protocol):
    """What a node needs of the loop that runs it."""

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]: ...

    def node_paused(self, node: Node) -> None: ...

    def node_resumed(self, node: Node) -> None: ...

    def node_killed(self, node: Node) -> None: ...


class Node:
    """One simulated process, made by `VirtualTimeLoop.node`. A restarted process is another node of the same name."""

    def __init__(self, loop: NodeLoop, name: str, number: int) -> None:
        self.name = name
        self.state = NodeState.RUNNING
        self.rank = (number, self)
        """Its place among the nodes of its loop."""
        self.callbacks: deque[Callback | Timer] = deque()
        """What is to run next, in order: the loop's own."""
        self._loop = loop
        self._trace_lines: dict[str, bytes] = {}
        self._on_kill: dict[Callable[[], None], None] = {}
        self.context = contextvars.Context()
        """The context in which the node's first task runs; whatever is started in it belongs to the node."""
        self.context.run(CURRENT_NODE.set, self)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.state.value}>"

    def trace_line(self, callback: object) -> bytes:
        """What the trace takes in for a step of this node that is no task's: a few names, again and again."""
        name = name_of(callback)
        line = self._trace_lines.get(name)
        if line is None:
            line = self._trace_lines[name] = trace_line(self.name, name)
        return line

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as part of this node. After a kill the task neither runs nor ends: wait for it with care."""
        return self._loop.create_task(coro, name=name, context=self.context.copy())

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function at once, as part of this node: what it starts belongs to the node."""
        return self.context.copy().run(function, *args, **kwargs)

    async def run(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> T:
        """Run a coroutine as part of this node and wait for its result, from outside of the node.

        Raises:
            NodeKilled: the node was killed first.
        """
        task = self.create_task(coro, name=name)
        killed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not killed.done():
                killed.set_result(None)

        forget = self.on_kill(end)
        if self.state is NodeState.KILLED:
            end()
        try:
            await asyncio.wait([task, killed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            forget()
        if not task.done():
            raise NodeKilled(f"{self.name} was killed while it ran {task.get_name()}")
        return task.result()

    def on_kill(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, outside of the node, when it is killed, as the kernel closes a dead process's sockets.

        Returns what ends the wish.
        """
        self._on_kill[callback] = None
        return lambda: self._on_kill.pop(callback, None)

    def pause(self) -> None:
        """Freeze the node as SIGSTOP does. Its timers that come due meanwhile run late, when it is resumed."""
        if self.state is NodeState.RUNNING:
            self.state = NodeState.PAUSED
            self._loop.node_paused(self)

    def resume(self) -> None:
        """Let a paused node go on, as SIGCONT does."""
        if self.state is NodeState.PAUSED:
            self.state = NodeState.RUNNING
            self._loop.node_resumed(self)

    def kill(self) -> None:
        """Stop the node dead as SIGKILL does. A callback of its own that runs right now still ends."""
        if self.state is NodeState.KILLED:
            return
        self.state = NodeState.KILLED
        self._loop.node_killed(self)
        for callback in list(self._on_kill):
            contextvars.Context().run(callback)
        self._on_kill.clear()


CURRENT_NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("current_node", default=None)
"""The node to which the running code belongs; None for the world around the nodes: the network, the test itself."""


def current_node() -> Node | None:
    """The node to which the running code belongs; None outside of all nodes."""
    return CURRENT_NODE.get()


class NodeClock:
    """A clock that drifts: a node's own reading of the loop's time. Holders and waiters of leases each read their own.

    Args:
        time: the true time, such as `loop.time`.
        rate: seconds of this clock per true second, such as 1.04.
        offset_s: what this clock shows at the true time zero.
    """

    def __init__(self, time: Callable[[], float], rate: float = 1.0, offset_s: float = 0.0) -> None:
        if rate <= 0:
            raise ValueError(f"a clock's rate is above 0, not {rate}")
        self._time = time
        self.rate = rate
        self.offset_s = offset_s

    def __call__(self) -> float:
        return self._time() * self.rate + self.offset_s

    def true_s(self, seconds: float) -> float:
        """How many true seconds pass while this clock counts so many."""
        return seconds / self.rate
