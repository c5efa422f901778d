"""Eager tasks: the first step of a coroutine is made at once, and it gets a task of its own only if it has to wait.

Most turns of grains never wait for anything. A task for each would cost a pass of the event loop before it begins, and
more time than many a turn. Python 3.12 has eager tasks; these work on 3.11 too, and what is over with its first step
takes no task at all.

While a coroutine makes its first step, `asyncio.current_task()` is a task that stands ready for it, so that timeouts,
task groups and cancellation mean what they mean in any task. If it has to wait, that task carries it on from there;
else the task stands ready for the next one, unless somebody has kept hold of it. How a task becomes the current one is
in what asyncio documents for those who extend it ("Task lifetime support").
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from sys import getrefcount
from typing import Any, Final, NoReturn, cast
from weakref import getweakrefcount

from silo.tasks import cancelled

current_tasks: Final[dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None] = (
    vars(asyncio.tasks)["_current_tasks"] if sys.version_info < (3, 12) else None
)
"""Where Python 3.11 has the current task of each loop, for who cannot spare the time that a function takes."""
if sys.version_info >= (3, 12):
    from asyncio.tasks import _swap_current_task as swap_current_task
else:

    def swap_current_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        assert current_tasks is not None
        outer = current_tasks.get(loop)
        if task is not None:
            current_tasks[loop] = task
        else:
            del current_tasks[loop]
        return outer


NESTED_MAX: Final = 8
"""How many first steps may be made within one another, as by grains that call each other; others wait for a pass."""
OVER: Final = object()
"""What a first step gives that was the last one as well."""


class EagerTasks:
    """Starts coroutines eagerly, and owns those that are not over.

    Args:
        name: of their tasks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self.places: list[Carrier | None] = [None] * NESTED_MAX
        """The places for first steps that are free, each with what stands ready there, where that has been made."""
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many are not over."""
        return len(self._running)

    def start(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        """Make the first step of a coroutine, in this context, and have the rest carried on.

        It should raise nothing but CancelledError; anything else goes to the loop's exception handler.
        """
        try:
            self.step(coroutine, context)
        except asyncio.CancelledError:
            pass  # as for a task that ends so: who cancelled it knows
        except Exception as error:
            self._loop.call_exception_handler({"message": f"{self._name} failed", "exception": error})

    def step(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None] | None:
        """As `start`, but whatever the first step raises is raised here.

        Returns:
            The task that carries the coroutine on, or begins it where too many are nested; None where it is over.
        """
        if not self.places:
            carrier = self.new_carrier(context)
            carrier.begin(coroutine, context)
            return carrier.task
        waits = self.begin(coroutine.__await__(), context)
        if waits is OVER:
            return None
        carrier, waits_for = cast("Waiting", waits)
        carrier.carry_on(coroutine, context, waits_for)
        return carrier.task

    def begin(self, steps: Iterator[Any], context: contextvars.Context) -> object:
        """Make the first step of what a coroutine is awaited by; only while a place is free.

        By way of an iterator, since one that ends and returns nothing raises nothing.

        Returns:
            OVER, or a `Waiting`, of which the carrier is to carry it on.
        """
        carrier = self.places.pop() or self.new_carrier(context)
        task = carrier.task
        outer = swap_current_task(self._loop, task)
        waits_for = OVER
        try:
            waits_for = context.run(next, steps, OVER)
        finally:
            swap_current_task(self._loop, outer)
            # Where nobody has cancelled the task, or kept hold of it, it is referred to as when it was new, and by a
            # name here. Who has kept hold of it may cancel it yet, and would mean the coroutine that is over.
            if (
                waits_for is OVER
                and getrefcount(task) == carrier.references
                and getweakrefcount(task) == carrier.weak_references
                and not task.cancelling()
            ):
                self.places.append(carrier)
            else:
                self.free_place(task, waits_for)
        return OVER if waits_for is OVER else (carrier, waits_for)

    def free_place(self, task: asyncio.Task[None], waits_for: object) -> None:
        """The task is no longer ready: it has something to carry on, or is not to be trusted with anything more."""
        self.places.append(None)
        if waits_for is OVER:
            task.cancel()

    def new_carrier(self, context: contextvars.Context) -> Carrier:
        return Carrier(self._loop, self._name, context, self._running)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Own a task that was begun elsewhere, until it ends."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self, timeout_s: float | None = None) -> int:
        """Cancel all that is not over, and wait for it; returns how many still are not over, that much later.

        Args:
            timeout_s: None, to wait until all are over.
        """
        tasks = self._running | {carrier.task for carrier in self.places if carrier is not None}
        self.places[:] = [None] * len(self.places)
        if timeout_s is None:
            await cancelled(tasks)
            return 0
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, left = await asyncio.wait(tasks, timeout=timeout_s)
        return len(left)


class Carrier(Coroutine[Any, Any, None]):
    """What such a task runs: nothing while it stands ready, then the one coroutine that it was given."""

    __slots__ = (
        "_context",
        "_coroutine",
        "_loop",
        "_ready",
        "_running",
        "_stepped",
        "_yielded",
        "references",
        "task",
        "weak_references",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: contextvars.Context,
        running: set[asyncio.Task[Any]],
    ) -> None:
        self._loop = loop
        self._running = running
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._context: contextvars.Context
        self._stepped = False
        """It has made a step of which the task has not heard."""
        self._yielded: Any = None
        """What it waits for after that."""
        self._ready: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] = loop.create_task(self, name=name, context=context.copy())
        self.references = getrefcount(self.task) + 1
        """How many there are to it while nobody knows it but loop, carrier, and whoever counts them by a name."""
        self.weak_references = getweakrefcount(self.task)
        """Likewise, of the kind that the list of all tasks has."""

    def begin(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        """Run this from its beginning."""
        self._coroutine, self._context = coroutine, context
        self._running.add(self.task)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def carry_on(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context, yielded: object) -> None:
        """Run this from after its first step, which ended with waiting for what it yielded."""
        self._stepped, self._yielded = True, yielded
        self.begin(coroutine, context)

    # What a task asks of the coroutine that it runs.

    def send(self, value: Any, /) -> Any:
        coroutine = self._coroutine
        if coroutine is None:
            self._ready = self._loop.create_future()
            return next(self._ready.__await__())
        if self._stepped:
            return self._first_wait()
        try:
            return self._context.run(coroutine.send, value)
        except BaseException:
            self._running.discard(self.task)
            raise

    def throw(self, error: BaseException, *_: Any) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - the form that tasks use
        coroutine = self._coroutine
        if coroutine is None:
            raise error
        if self._stepped:
            waits_for = self._first_wait()
            if asyncio.isfuture(waits_for) and waits_for.cancel():
                return waits_for  # as for any task that is cancelled while it waits
        try:
            return self._context.run(coroutine.throw, error)
        except BaseException:
            self._running.discard(self.task)
            raise

    def _first_wait(self) -> Any:
        yielded, self._yielded, self._stepped = self._yielded, None, False
        return yielded

    def close(self) -> None:
        if self._coroutine is not None:
            self._running.discard(self.task)
            self._context.run(self._coroutine.close)

    def __await__(self) -> Generator[Any, Any, NoReturn]:
        raise TypeError("only its own task runs it")

    # What debuggers and listings of tasks look at.

    @property
    def cr_frame(self) -> Any:
        return getattr(self._coroutine, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self._coroutine, "cr_await", None)


Waiting = tuple[Carrier, Any]
"""What carries on a coroutine that has to wait, and what that waits for."""


class Later:
    """In place of a value: it is not there yet.

    Args:
        answer: what it can be awaited from; None where nothing has been done for it so far.
    """

    __slots__ = ("answer",)

    def __init__(self, answer: Awaitable[Any] | None) -> None:
        self.answer = answer


class Ready:
    """What can be awaited, and is there already: to make a coroutine or a future for it would take longer."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self.value


class Driven:
    """A coroutine that is driven without a task, for one that asks for none: it may wait for futures, and no more.

    Args:
        on_over: called once it is over, with what it raised; it must not raise.
    """

    __slots__ = ("_context", "_coroutine", "_loop", "_on_over")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        on_over: Callable[[BaseException | None], None],
    ) -> None:
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine
        self._loop = loop
        self._context = context
        self._on_over = on_over
        self._step()

    def _step(self, _: object = None) -> None:
        coroutine = self._coroutine
        if coroutine is None:
            return  # it was closed while it waited
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            self._on_over(None)
        except (Exception, asyncio.CancelledError) as error:
            self._on_over(error)
        else:
            if waits_for is None:
                self._loop.call_soon(self._step, context=self._context)
            else:
                waits_for._asyncio_future_blocking = False  # as a task does: it is what waits for the future now
                waits_for.add_done_callback(self._step, context=self._context)

    def close(self) -> None:
        """End it where it waits; `on_over` is not called."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()
