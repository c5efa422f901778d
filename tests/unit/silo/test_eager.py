"""Eager tasks: the first step is made at once, and nobody can tell that there was no task from the beginning."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from silo.eager import NESTED_MAX, Driven, EagerTasks

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="outside")


@pytest.fixture
async def eager() -> AsyncIterator[EagerTasks]:
    tasks = EagerTasks("tested")
    yield tasks
    assert await tasks.close(1.0) == 0


def start(eager: EagerTasks, code: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await code()

    eager.start(run(), contextvars.copy_context())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)


async def passes(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_waits_for_nothing_is_over_before_start_returns(eager: EagerTasks) -> None:
    done: list[str] = []

    async def code() -> None:
        done.append("over")

    start(eager, code)
    assert done == ["over"]
    assert len(eager) == 0


async def test_what_waits_goes_on_when_that_has_come(eager: EagerTasks) -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    got: list[str] = []

    async def code() -> None:
        got.append(await gate)
        await asyncio.sleep(0.001)
        got.append("after a timer")

    start(eager, code)
    assert len(eager) == 1
    gate.set_result("came")
    await until(lambda: not len(eager))
    assert got == ["came", "after a timer"]


@pytest.mark.parametrize("waits", [False, True])
async def test_the_current_task_is_the_same_from_beginning_to_end_and_nobody_elses(
    eager: EagerTasks, waits: bool
) -> None:
    mine = asyncio.current_task()
    seen: list[asyncio.Task[Any] | None] = []

    async def code() -> None:
        seen.append(asyncio.current_task())
        if waits:
            await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    start(eager, code)
    assert asyncio.current_task() is mine
    await passes()
    assert seen[0] is seen[1]
    assert seen[0] not in (None, mine)


async def test_a_task_that_somebody_kept_hold_of_is_not_used_again(eager: EagerTasks) -> None:
    kept: list[asyncio.Task[Any] | None] = []
    cancelled: list[str] = []

    async def keeps() -> None:
        kept.append(asyncio.current_task())

    async def victim() -> None:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            cancelled.append("victim")
            raise

    start(eager, keeps)
    start(eager, victim)
    for task in kept:
        assert task is not None
        task.cancel()
    await until(lambda: not len(eager))
    assert cancelled == []


async def test_a_timeout_begun_in_the_first_step_ends_the_wait(eager: EagerTasks) -> None:
    ended: list[str] = []

    async def code() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append("in time")

    start(eager, code)
    await until(lambda: not len(eager))
    assert ended == ["in time"]


async def test_a_task_group_begun_in_the_first_step_ends_with_its_children(eager: EagerTasks) -> None:
    ended: list[str] = []

    async def child() -> None:
        await asyncio.sleep(0.001)
        ended.append("child")

    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
        ended.append("group")

    start(eager, code)
    await until(lambda: not len(eager))
    assert ended == ["child", "child", "group"]


@pytest.mark.parametrize("passes_before", [0, 1, 2, 3])
async def test_a_cancellation_arrives_where_it_waits_and_reaches_what_it_waits_for(
    eager: EagerTasks, passes_before: int
) -> None:
    story: list[str] = []
    running: list[asyncio.Task[Any]] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            story.append("child ended")

    async def code() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append(task)
        try:
            await asyncio.create_task(child())
        except asyncio.CancelledError:
            story.append("cancelled")
            raise

    start(eager, code)
    await passes(passes_before)
    running[0].cancel()
    await until(lambda: not len(eager))
    assert story == (["child ended", "cancelled"] if passes_before else ["cancelled"])  # a child that has not begun


async def test_who_cancels_itself_in_the_first_step_is_cancelled_at_its_next_wait(eager: EagerTasks) -> None:
    story: list[str] = []

    async def code() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        story.append("goes on to its next wait")
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            story.append("cancelled")
            raise

    start(eager, code)
    await until(lambda: not len(eager))
    assert story == ["goes on to its next wait", "cancelled"]


async def test_the_context_is_its_own_from_beginning_to_end(eager: EagerTasks) -> None:
    seen: list[str] = []

    async def code() -> None:
        VARIABLE.set("inside")
        await asyncio.sleep(0)
        seen.append(VARIABLE.get())

    start(eager, code)
    seen.append(VARIABLE.get())
    await passes()
    assert seen == ["outside", "inside"]


async def test_first_steps_within_one_another_are_bounded(eager: EagerTasks) -> None:
    depth = 0
    deepest = 0
    total = 100
    ended: list[int] = []

    async def code(number: int) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        if number < total:
            eager.start(code(number + 1), contextvars.copy_context())
        ended.append(number)
        depth -= 1

    eager.start(code(1), contextvars.copy_context())
    await until(lambda: len(ended) == total)
    assert deepest == NESTED_MAX + 1  # the outermost may be one that a task carries


async def test_what_a_first_step_raises_is_reported_and_harms_nobody(eager: EagerTasks) -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    async def code() -> None:
        raise ValueError("at once")

    try:
        start(eager, code)
    finally:
        loop.set_exception_handler(None)
    assert [str(each["exception"]) for each in reported] == ["at once"]
    await test_what_waits_for_nothing_is_over_before_start_returns(eager)


async def test_closing_cancels_what_runs_and_tells_of_what_will_not_end() -> None:
    eager = EagerTasks("tested")
    ends = asyncio.Event()

    async def stubborn() -> None:
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue

    async def obedient() -> None:
        await ends.wait()

    start(eager, stubborn)
    start(eager, obedient)
    await passes()
    assert await eager.close(0.01) == 1
    ends.set()
    assert await eager.close(1.0) == 0


async def test_a_driven_coroutine_starts_at_once_waits_for_futures_and_tells_how_it_ended() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    ends: list[BaseException | None] = []
    steps: list[str] = []

    async def code() -> None:
        steps.append("began")
        await gate
        await asyncio.sleep(0)
        raise ConnectionError("broken")

    Driven(code(), loop, contextvars.copy_context(), ends.append)
    assert steps == ["began"]
    assert ends == []
    gate.set_result(None)
    await until(lambda: bool(ends))
    assert [str(end) for end in ends] == ["broken"]


async def test_a_driven_coroutine_that_is_closed_ends_where_it_waits_and_says_no_more() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    ends: list[BaseException | None] = []
    cleaned: list[str] = []

    async def code() -> None:
        try:
            await gate
        finally:
            cleaned.append("up")

    driven = Driven(code(), loop, contextvars.copy_context(), ends.append)
    driven.close()
    gate.set_result(None)
    await passes()
    assert cleaned == ["up"]
    assert ends == []
