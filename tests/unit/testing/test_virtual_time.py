"""The virtual-time loop: time jumps, order repeats, and what asyncio would only log fails the run."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import AsyncGenerator, Coroutine

import pytest

from silo.testing.virtual_time import (
    TASKS_KEPT_MIN,
    CallbackFailed,
    Deadlock,
    LimitReached,
    TasksLeaked,
    VirtualTimeLoop,
    run,
)


def test_a_long_sleep_takes_no_time_and_ends_when_it_says() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(main) == 3600.0


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        for number in range(20):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(6)
        return seen

    assert run(main) == list(range(20))


def test_timeouts_queues_and_groups_work_as_in_asyncio() -> None:
    async def main() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        out: list[object] = []

        async def produce() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            out += [await queue.get() for _ in range(3)]
        try:
            async with asyncio.timeout(2):
                await queue.get()
        except TimeoutError:
            out.append("timeout")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 1)
        return [*out, asyncio.get_running_loop().time()]

    assert run(main) == [0, 1, 2, "timeout", 6.0]


async def _worker(log: list[tuple[str, int]], name: str) -> None:
    for number in range(5):
        log.append((name, number))
        await asyncio.sleep(0)


def _interleaving(seed: int | None) -> tuple[list[tuple[str, int]], int]:
    log: list[tuple[str, int]] = []
    loop = VirtualTimeLoop(None if seed is None else random.Random(seed))

    async def main() -> None:
        tasks = [loop.node(name).create_task(_worker(log, name)) for name in "abc"]
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    trace = loop.trace
    loop.close()
    return log, trace


def test_the_same_seed_gives_the_same_trace() -> None:
    runs = {seed: _interleaving(seed) for seed in range(10)}
    for seed, first in runs.items():
        assert _interleaving(seed) == first
    assert len({trace for _log, trace in runs.values()}) > 5


def test_the_trace_tells_tasks_by_the_names_that_they_bear() -> None:
    def trace(name: str) -> int:
        loop = VirtualTimeLoop()

        async def main() -> None:
            task = asyncio.create_task(asyncio.sleep(1))
            task.set_name(name)
            await task

        loop.run_until_complete(main())
        loop.close()
        return loop.trace

    assert trace("one") == trace("one") != trace("other")


def test_seeds_shuffle_between_nodes_and_never_within_one() -> None:
    for seed in range(10):
        log, _trace = _interleaving(seed)
        for name in "abc":
            assert [number for who, number in log if who == name] == list(range(5))
    assert len({tuple(_interleaving(seed)[0]) for seed in range(10)}) > 5


def test_without_a_seed_steps_are_made_in_the_order_of_asyncio() -> None:
    assert _interleaving(None)[0] == [(name, number) for number in range(5) for name in "abc"]


def test_a_deadlock_is_told_with_the_tasks_that_wait() -> None:
    async def stuck_reader() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(stuck_reader(), name="reader-7")

    with pytest.raises(Deadlock, match=r"(?s)main.*reader-7.*stuck_reader"):
        run(main)


def test_a_run_is_bounded_in_virtual_seconds_and_in_steps() -> None:
    async def for_ever(pause_s: float) -> None:
        while True:  # noqa: ASYNC110 # the fault that is looked for
            await asyncio.sleep(pause_s)

    with pytest.raises(LimitReached, match="virtual seconds"):
        run(lambda: for_ever(1), seconds_max=100)
    with pytest.raises(LimitReached, match="steps"):
        run(lambda: for_ever(0), steps_max=1000)


def test_a_program_that_spins_meets_its_timers_when_steps_take_time() -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while loop.time() < started + 0.01:  # noqa: ASYNC110 # the fault that is looked for
            await asyncio.sleep(0)
        return True

    assert run(main, step_s=1e-6)


def test_an_exception_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(CallbackFailed, match="ZeroDivisionError") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_task_whose_exception_nobody_looks_at_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task

    with pytest.raises(CallbackFailed, match="never retrieved"):
        run(main)


def test_a_task_left_behind_fails_the_run_unless_allowed() -> None:
    async def main() -> str:
        asyncio.create_task(asyncio.sleep(100), name="forgotten")  # noqa: RUF006 # the fault that is looked for
        return "ended"

    with pytest.raises(TasksLeaked, match="forgotten"):
        run(main)
    assert run(main, leaks_allowed=True) == "ended"


def test_a_task_left_behind_is_found_among_many_that_have_ended() -> None:
    async def main() -> None:
        left = asyncio.create_task(asyncio.sleep(100), name="forgotten")
        for _ in range(3 * TASKS_KEPT_MIN):
            await asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(0)
        assert not left.done()

    with pytest.raises(TasksLeaked, match="forgotten"):
        run(main)


def test_tasks_left_behind_are_put_away_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0)
            ended.append("unreachable")

    async def main() -> None:
        asyncio.create_task(stubborn())  # noqa: RUF006 # left behind on purpose
        await asyncio.sleep(1)

    run(main, leaks_allowed=True)
    assert ended == []
    assert not recwarn.list


def test_putting_tasks_away_bears_task_groups() -> None:
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))  # with none left to wait for, it raises what ends it as a group
            await asyncio.sleep(100)

    async def main() -> None:
        asyncio.create_task(grouped())  # noqa: RUF006 # left behind on purpose
        await asyncio.sleep(1)

    run(main, leaks_allowed=True)


def test_putting_tasks_away_bears_finally_blocks_that_start_others(recwarn: pytest.WarningsRecorder) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.get_running_loop().create_task(asyncio.sleep(1))

    async def main() -> None:
        asyncio.create_task(stubborn())  # noqa: RUF006 # left behind on purpose
        await asyncio.sleep(1)

    run(main, leaks_allowed=True)
    assert not recwarn.list


def test_putting_tasks_away_leaves_nothing_within_them_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def note(what: sys.UnraisableHookArgs) -> None:
        told.append(what.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", note)

    async def waiting() -> None:
        await asyncio.get_running_loop().create_future()

    async def inner() -> None:
        try:
            await waiting()
        finally:
            try:
                await waiting()
            finally:
                await waiting()

    async def outer() -> None:
        await inner()

    async def main() -> None:
        kept.append(asyncio.create_task(outer()))  # else the collector has it before it is put away
        await asyncio.sleep(1)

    kept: list[asyncio.Task[None]] = []
    run(main, leaks_allowed=True)
    kept.clear()
    gc.collect()
    assert told == []


def test_a_task_that_never_began_leaves_nothing_behind_that_was_never_awaited(
    recwarn: pytest.WarningsRecorder,
) -> None:
    kept: list[asyncio.Task[None]] = []

    async def inner() -> None: ...

    async def outer(rest: Coroutine[None, None, None]) -> None:
        await rest

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            kept.append(asyncio.create_task(outer(outer(inner()))))

    async def main() -> None:
        asyncio.create_task(stubborn())  # noqa: RUF006 # left behind on purpose
        await asyncio.sleep(1)

    run(main, leaks_allowed=True)
    assert kept
    kept.clear()  # only now are the coroutines collected, long after the loop has looked away
    gc.collect()
    assert not recwarn.list


def test_a_set_of_tasks_has_the_same_order_in_each_run() -> None:
    async def main() -> list[str]:
        futures = {asyncio.get_running_loop().create_future() for _ in range(20)}
        tasks = {asyncio.create_task(asyncio.sleep(number)) for number in range(20)}
        await asyncio.wait(tasks)
        return [task.get_name() for task in tasks] + [str(hash(future)) for future in futures]

    assert run(main) == run(main)


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print, "never")

    with pytest.raises(RuntimeError, match="no threads"):
        run(main)


def test_a_generator_that_was_left_is_closed_at_the_end() -> None:
    closed: list[float] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def main() -> None:
        async for number in numbers():
            if number == 3:
                break

    run(main)
    assert closed == [0.0]


def test_ten_thousand_cancelled_timers_do_not_pile_up() -> None:
    loop = VirtualTimeLoop()

    async def main() -> int:
        for _ in range(10_000):
            loop.call_later(1000, print).cancel()
        return loop.timers

    assert loop.run_until_complete(main()) < 2_000
    loop.close()


def test_asyncio_runner_can_use_the_loop() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(asyncio.sleep(50, "done")) == "done"
