"""An event loop under virtual time: when nothing is left to do, the clock jumps to the next timer.

There is no I/O and there are no threads, so a run depends on its program and its seed alone: the same seed gives the
same steps in the same order. Callbacks of one node run in the order in which they were scheduled, as asyncio promises.
Between nodes a real cluster promises no order, so with a random source the loop picks who makes the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import random
import struct
import sys
import warnings
import weakref
import zlib
from bisect import insort
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from heapq import heapify, heappop, heappush
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from silo.testing.nodes import CURRENT_NODE, Node, NodeState
from silo.testing.tasks import Callback, NumberedFuture, NumberedTask, Timer, name_of, put_away
from silo.testing.tasks import describe_task as describe_task  # for those who look at a loop's pending tasks

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SECONDS_MAX = 86_400.0
"""The longest run, in virtual seconds, unless the caller says otherwise."""
STEPS_MAX = 20_000_000
"""The longest run, in callbacks, unless the caller says otherwise."""
CANCELLED_TIMERS_MAX = 1_000
"""How many cancelled timers may lie in the heap before it is swept."""
TASKS_KEPT_MIN = 1_000
"""How many references to tasks may lie about before those of tasks that have ended are swept."""
UNTRACED_MAX = 10_000
"""How many pieces of the trace may lie about before it takes them in."""
CLOSED: Final = "Event loop is closed"
_clock_bytes: Final = struct.Struct("<d").pack
_RUNNING: Final = NodeState.RUNNING
_KILLED: Final = NodeState.KILLED
_checksum: Final = zlib.crc32
TASK_DESTROYED = "Task was destroyed but it is pending!"
"""What asyncio says of a task that was collected before it ended."""


class SimulationFailure(Exception):
    """A run that did not go as a correct program's run does."""


class Deadlock(SimulationFailure):
    """Nothing can run and no timer is set, so the program waits for ever."""


class LimitReached(SimulationFailure):
    """The run took more virtual seconds or more steps than it may."""


class CallbackFailed(SimulationFailure):
    """A callback raised, or the exception of a task or future was never looked at."""


class TasksLeaked(SimulationFailure):
    """The program ended and left tasks behind that nobody waits for."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An asyncio event loop whose clock moves only when everything else has come to rest.

    Args:
        rng: decides which node makes the next step; without it, whoever scheduled its callback first.
        start_s: what the clock shows first.
        step_s: how far the clock moves with each callback; above zero, a program that spins meets its timers.
        seconds_max: virtual seconds after which the run fails with LimitReached.
        steps_max: callbacks after which the run fails with LimitReached.
        leaks_allowed: say nothing when a task that nobody refers to any more is collected before its end.
        on_step: told of each step, for people who look for a fault: the time, the node's name, and what runs.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        start_s: float = 0.0,
        step_s: float = 0.0,
        seconds_max: float = SECONDS_MAX,
        steps_max: int = STEPS_MAX,
        leaks_allowed: bool = False,
        on_step: Callable[[float, str, str], None] | None = None,
    ) -> None:
        super().__init__()
        self._rng = rng
        self._now = start_s
        self._step_s = step_s
        self._ends_at = start_s + seconds_max
        self._steps_max = steps_max
        self._leaks_allowed = leaks_allowed
        self._on_step = on_step
        self.steps = 0
        self._trace = 0
        self._untraced: list[bytes] = []
        """The steps that the trace has not taken in yet."""
        self._order = 0
        self._nodes: list[Node] = []
        """Those that were not killed, in the order in which they were made."""
        self._ready: list[tuple[int, Node]] = []
        """Those of them that have something to do and are not paused, in the same order."""
        self._nodes_made = 0
        self._world = self.node("world")
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_cancelled = 0
        self._on_timer_cancelled = self._timer_cancelled
        self._tasks: dict[int, tuple[weakref.ref[asyncio.Task[Any]], Node]] = {}
        """By number: without a callback of the reference, and without a hash in Python, for each."""
        self._tasks_kept_max = TASKS_KEPT_MIN
        self._killed_tasks: list[asyncio.Task[Any]] = []
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._tasks_made = self._futures_made = 0
        self._is_running = self._is_stopping = self._is_closed = self._burying = False
        self._failure: SimulationFailure | None = None
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_factory: Any = None

    # Nodes

    def node(self, name: str) -> Node:
        """A new simulated process."""
        self._nodes_made += 1
        node = Node(self, name, self._nodes_made)
        self._nodes.append(node)
        return node

    def node_paused(self, node: Node) -> None:
        """Run none of its callbacks until it is resumed."""
        if node.callbacks:
            self._ready.remove(node.rank)

    def node_resumed(self, node: Node) -> None:
        """Go on with its callbacks."""
        if node.callbacks:
            insort(self._ready, node.rank)

    def node_killed(self, node: Node) -> None:
        """Drop what it had scheduled. Its tasks are kept: the collector would run their `finally` blocks."""
        self._nodes.remove(node)
        if node.rank in self._ready:
            self._ready.remove(node.rank)
        node.callbacks.clear()
        self._killed_tasks += [task for task, owner in self._unfinished() if owner is node]

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """The unfinished tasks of all nodes that were not killed, in the order in which they were made."""
        return [task for task, node in self._unfinished() if node.state is not NodeState.KILLED]

    def _unfinished(self) -> list[tuple[asyncio.Task[Any], Node]]:
        known = [(reference(), node) for reference, node in self._tasks.values()]
        return [(task, node) for task, node in known if task is not None and not task.done()]

    @property
    def trace(self) -> int:
        """A checksum over all steps made: when, by which node, what. Two runs with equal traces went the same way."""
        self._take_in_trace()
        return self._trace

    def _take_in_trace(self) -> None:
        self._trace = _checksum(b"".join(self._untraced), self._trace)
        self._untraced.clear()

    # Time and callbacks

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        if context is None:
            context = contextvars.copy_context()
        node = context.get(CURRENT_NODE, None) or self._world
        called = Callback(callback, args, context)
        self._enqueue(node, called)
        return called

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        if context is None:
            context = contextvars.copy_context()
        node = context.get(CURRENT_NODE, None) or self._world
        timer = Timer(when, callback, args, context, node, self._on_timer_cancelled)
        self._order = order = self._order + 1
        heappush(self._timers, (when, order, timer))
        return timer

    @property
    def timers(self) -> int:
        """How many timers are set, with those that were cancelled and not swept yet."""
        return len(self._timers)

    def _timer_cancelled(self) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > CANCELLED_TIMERS_MAX and self._timers_cancelled * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2].is_cancelled]
            heapify(self._timers)
            self._timers_cancelled = 0

    def _enqueue(self, node: Node, callback: Callback | Timer) -> None:
        if node.state is _KILLED or self._burying:
            return
        self._order = callback.order = self._order + 1
        callbacks, ready = node.callbacks, self._ready
        if not callbacks and node.state is _RUNNING:
            if ready:
                insort(ready, node.rank)
            else:
                ready.append(node.rank)
        callbacks.append(callback)

    # Tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        future: NumberedFuture[Any] = NumberedFuture(loop=self)
        self._futures_made = future.number = self._futures_made + 1
        return future

    def create_task(  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - admits no generators
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """As asyncio does; the task belongs to its context's node. Each loop counts tasks from 1, so traces repeat."""
        if self._is_closed:
            raise RuntimeError(CLOSED)
        self._tasks_made = number = self._tasks_made + 1
        name = name or f"task-{number}"
        node = (CURRENT_NODE.get() if context is None else context.get(CURRENT_NODE, None)) or self._world
        task: asyncio.Task[T]
        if self._task_factory is None:
            task = NumberedTask(number, node.name, coro, loop=self, name=name, context=context, **options)
        else:
            task = self._task_factory(self, coro, name=name, context=context, **options)
        self._keep(task, node)
        if node.state is _KILLED or self._burying:
            self._killed_tasks.append(task)  # it never runs: kept until it is put away
        return task

    def _keep(self, task: asyncio.Task[Any], node: Node) -> None:
        self._tasks[self._tasks_made] = weakref.ref(task), node
        if len(self._tasks) > self._tasks_kept_max:
            known = [(number, reference(), kept) for number, (reference, kept) in self._tasks.items()]
            self._tasks = {
                number: (weakref.ref(each), kept)
                for number, each, kept in known
                if each is not None and not each.done()
            }
            self._tasks_kept_max = max(TASKS_KEPT_MIN, 2 * len(self._tasks))

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # Running

    def run_forever(self) -> None:
        self._check_open()
        if self._is_running:
            raise RuntimeError("this event loop is already running")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finalize_generator)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            self._make_steps()
        finally:
            self._is_running = self._is_stopping = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def run_until_complete(  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - admits no generators
        self, future: Awaitable[T]
    ) -> T:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        except BaseException:
            if task.done() and not task.cancelled():
                task.exception()  # the failure that ends the run is the one to tell
            raise
        finally:
            task.remove_done_callback(self._stop_when_done)
        if not task.done():
            raise RuntimeError("the event loop was stopped before the future was done")
        return task.result()

    def _stop_when_done(self, _future: asyncio.Future[Any]) -> None:
        self._is_stopping = True

    def _make_steps(self) -> None:
        """Run callbacks one by one until it is to stop; where none can run now, the clock moves on.

        This is most of what a simulation costs beside its program: hence in one piece, and nothing is looked up twice.
        """
        timers, ready, untraced = self._timers, self._ready, self._untraced
        step_s, steps_max, on_step = self._step_s, self._steps_max, self._on_step
        while not self._is_stopping:
            if timers and timers[0][0] <= self._now:
                self._enqueue_due_timers()
            while not ready:
                self._move_on()
            index = self._pick() if len(ready) > 1 else 0
            node = ready[index][1]
            callbacks = node.callbacks
            called = callbacks.popleft()
            if not callbacks:
                del ready[index]
            if called.is_cancelled:
                continue
            self.steps = steps = self.steps + 1
            if steps > steps_max:
                raise LimitReached(
                    f"the run passed {steps_max} steps at {self._now:.6f} s; waiting are:\n{self._waiting()}"
                )
            self._now = now = self._now + step_s
            callback = called.callback
            owner: object = getattr(callback, "__self__", None)
            # The clock's bytes, not its digits: this is done for every step, and writing a float out is most of it.
            untraced.append(_clock_bytes(now))
            untraced.append(owner.line if type(owner) is NumberedTask else node.trace_line(callback))
            if len(untraced) > UNTRACED_MAX:
                self._take_in_trace()
            if on_step is not None:
                on_step(now, node.name, name_of(callback))
            try:
                called.context.run(callback, *called.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # as asyncio does: whatever it is, it is told
                self.call_exception_handler(
                    {"message": f"Exception in callback {name_of(callback)}", "exception": error}
                )
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def _pick(self) -> int:
        """Who of several makes the next step."""
        ready = self._ready
        if self._rng is not None:
            return int(self._rng.random() * len(ready))
        return min(range(len(ready)), key=lambda index: ready[index][1].callbacks[0].order)

    def _move_on(self) -> None:
        """Move the clock on to the next timer."""
        if not self._timers:
            raise Deadlock(f"at {self._now:.6f} s nothing can run and no timer is set; waiting are:\n{self._waiting()}")
        self._now = max(self._now, self._timers[0][0])
        if self._now > self._ends_at:
            raise LimitReached(f"the run passed {self._ends_at:.0f} virtual seconds; waiting are:\n{self._waiting()}")
        self._enqueue_due_timers()

    def _enqueue_due_timers(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if timer.is_cancelled:
                self._timers_cancelled = max(0, self._timers_cancelled - 1)
            else:
                self._enqueue(timer.node, timer)

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End the loop. Unfinished tasks are put away in silence: their `finally` blocks run now, and reach nobody."""
        if self._is_running:
            raise RuntimeError("a running event loop cannot be closed")
        if self._is_closed:
            return
        self._burying = True
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # `finally` blocks may ask for it
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # what a `finally` block was about to await
                self._bury_tasks()
        finally:
            asyncio._set_running_loop(running)
        for node in self._nodes:
            node.callbacks.clear()
        self._ready.clear()
        self._timers.clear()
        self._killed_tasks.clear()
        self._is_closed = True

    def _bury_tasks(self) -> None:
        buried: set[int] = set()
        keep: list[asyncio.Task[Any]] = []
        while tasks := [task for task, _node in self._unfinished() if id(task) not in buried]:
            for task in tasks:  # a `finally` block may have started another one: hence the outer loop
                buried.add(id(task))
                keep.append(task)
                put_away(task)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)

    # Faults

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Whatever asyncio would only log ends the run."""
        if self._is_closed or self._burying or (self._leaks_allowed and context.get("message") == TASK_DESTROYED):
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
            return
        cause = context.get("exception")
        details = "".join(
            f"\n  {key}: {value!r}" for key, value in context.items() if key not in ("message", "exception")
        )
        failure = CallbackFailed(f"{context.get('message', 'a callback failed')}: {cause!r}{details}")
        failure.__cause__ = cause if isinstance(cause, BaseException) else None
        if self._failure is None:
            self._failure = failure

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._exception_handler

    def take_failure(self) -> SimulationFailure | None:
        """The failure that was noticed since the last step, such as by the collector; the caller raises it."""
        failure, self._failure = self._failure, None
        return failure

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Has no effect: under virtual time no callback is slow."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override] # never returns
        raise RuntimeError(f"no threads run under virtual time: {func!r} was to run in an executor")

    def set_default_executor(self, executor: Any) -> NoReturn:
        raise RuntimeError("no threads run under virtual time")

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    async def shutdown_asyncgens(self) -> None:
        generators = list(self._generators)
        self._generators.clear()
        await asyncio.gather(*(generator.aclose() for generator in generators), return_exceptions=True)

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._is_closed and not self._burying:
            self.call_soon(self.create_task, generator.aclose())

    def _waiting(self) -> str:
        lines = [
            f"  {node.name}: {describe_task(task)}"
            for task, node in self._unfinished()
            if node.state is not NodeState.KILLED
        ]
        lines += [f"  {node.name} is paused" for node in self._nodes if node.state is NodeState.PAUSED]
        return "\n".join(lines) or "  nobody"


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    step_s: float = 0.0,
    seconds_max: float = SECONDS_MAX,
    steps_max: int = STEPS_MAX,
    leaks_allowed: bool = False,
) -> T:
    """Run a program under virtual time and return its result, as `asyncio.run` does under real time.

    Args:
        seed: decides which node makes each step and what the clock shows first; None for neither.
        leaks_allowed: do not fail where tasks are left unfinished at the end.

    Raises:
        SimulationFailure: it waits for ever, takes too long, a callback failed, or tasks were left behind.
    """
    rng = None if seed is None else random.Random(seed)
    start_s = 0.0 if rng is None else rng.uniform(0.0, 1_000_000.0)
    loop = VirtualTimeLoop(
        rng,
        start_s=start_s,
        step_s=step_s,
        seconds_max=seconds_max,
        steps_max=steps_max,
        leaks_allowed=leaks_allowed,
    )
    with contextlib.closing(loop):
        result = loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
        gc.collect()  # brings up exceptions that nobody has looked at
        failure = loop.take_failure()
        if failure is not None:
            raise failure
        left = loop.pending_tasks()
        if left and not leaks_allowed:
            raise TasksLeaked(
                "the program ended and left behind:\n" + "\n".join(f"  {describe_task(task)}" for task in left)
            )
    return result
