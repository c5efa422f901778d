"""Simulated processes: a killed node does nothing more, a paused one does it later, and clocks drift."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from silo.testing.nodes import Node, NodeClock, NodeKilled, NodeState, current_node
from silo.testing.virtual_time import Deadlock, VirtualTimeLoop, run


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


async def _tick(log: list[float], every_s: float = 1.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        log.append(asyncio.get_running_loop().time())


def test_what_a_node_starts_belongs_to_it() -> None:
    async def main() -> None:
        node = _loop().node("silo-1")
        seen: list[Node | None] = []

        async def child() -> None:
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_later(1, lambda: seen.append(current_node()))
            await asyncio.sleep(2)
            seen.append(current_node())

        async def parent() -> None:
            await asyncio.create_task(child())

        await node.create_task(parent())
        assert seen == [node, node]
        assert node.call(current_node) is node
        assert current_node() is None

    run(main)


def test_a_killed_node_runs_nothing_more_not_even_its_finally_blocks() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            log.append("closed")
            await asyncio.sleep(0)
            log.append("closed in order")

    async def work() -> None:
        async with resource():
            asyncio.get_running_loop().call_later(5, log.append, "timer")
            await asyncio.sleep(10)

    async def main() -> None:
        node = _loop().node("silo-1")
        node.create_task(work())
        ready = node.create_task(work())
        await asyncio.sleep(1)
        ready.cancel()  # its wake-up is scheduled already
        node.kill()
        await asyncio.sleep(100)
        assert log == []
        assert node.state is NodeState.KILLED

    run(main)


def test_a_killed_node_cannot_start_anything() -> None:
    async def main() -> None:
        log: list[float] = []
        node = _loop().node("silo-1")
        node.kill()
        node.create_task(_tick(log))
        node.call(asyncio.get_running_loop().call_soon, log.append, 1.0)
        node.call(asyncio.get_running_loop().call_later, 1, log.append, 1.0)
        await asyncio.sleep(10)
        assert log == []

    run(main)


def test_killed_tasks_count_neither_as_leaked_nor_as_pending() -> None:
    async def main() -> None:
        node = _loop().node("silo-1")
        task = node.create_task(_tick([]))
        await asyncio.sleep(3)
        assert task in _loop().pending_tasks()
        node.kill()
        assert task not in _loop().pending_tasks()

    run(main)


def test_a_future_shared_with_a_killed_node_still_serves_the_living() -> None:
    async def main() -> str:
        shared: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        dead, living = _loop().node("a"), _loop().node("b")
        log: list[str] = []

        async def wait(name: str) -> str:
            log.append(f"{name} {await shared}")
            return "answered"

        dead.create_task(wait("a"))
        waiting = living.create_task(wait("b"))
        await asyncio.sleep(1)
        dead.kill()
        shared.set_result("now")
        answer = await waiting
        assert log == ["b now"]
        return answer

    assert run(main) == "answered"


def test_a_paused_node_does_nothing_until_resumed_and_then_finds_its_timers_late() -> None:
    async def main() -> None:
        log: list[float] = []
        node = _loop().node("silo-1")
        task = node.create_task(_tick(log))
        await asyncio.sleep(2.5)
        node.pause()
        await asyncio.sleep(10)
        assert log == [1.0, 2.0]
        node.resume()
        await asyncio.sleep(2)
        assert log == [1.0, 2.0, 12.5, 13.5]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_callbacks_keep_their_order_over_a_pause() -> None:
    async def main() -> None:
        log: list[int] = []
        node = _loop().node("silo-1")
        node.pause()
        for number in range(5):
            node.call(asyncio.get_running_loop().call_later, number, log.append, number)
        await asyncio.sleep(20)
        assert log == []
        node.resume()
        await asyncio.sleep(0.001)
        assert log == [0, 1, 2, 3, 4]

    run(main)


def test_a_node_killed_while_paused_never_wakes() -> None:
    async def main() -> None:
        log: list[float] = []
        node = _loop().node("silo-1")
        node.create_task(_tick(log))
        await asyncio.sleep(1.5)
        node.pause()
        await asyncio.sleep(5)
        node.kill()
        node.resume()
        await asyncio.sleep(5)
        assert log == [1.0]
        assert node.state is NodeState.KILLED

    run(main)


def test_a_deadlock_names_the_paused_node() -> None:
    async def main() -> None:
        node = _loop().node("silo-1")
        node.pause()
        await node.create_task(asyncio.sleep(1))

    with pytest.raises(Deadlock, match="silo-1 is paused"):
        run(main)


def test_whoever_watches_a_kill_is_told_once_and_outside_of_the_node() -> None:
    async def main() -> None:
        told: list[Node | None] = []
        node = _loop().node("silo-1")
        node.on_kill(lambda: told.append(current_node()))

        async def suicide() -> None:
            node.kill()
            await asyncio.sleep(0)
            raise AssertionError("it went on")

        node.create_task(suicide())
        await asyncio.sleep(1)
        node.kill()
        assert told == [None]

    run(main)


def test_who_waits_for_a_node_learns_of_its_death() -> None:
    async def main() -> None:
        node = _loop().node("silo-1")
        assert await node.run(asyncio.sleep(1, "done")) == "done"
        asyncio.get_running_loop().call_later(5, node.kill)
        with pytest.raises(NodeKilled, match="silo-1"):
            await node.run(asyncio.sleep(10))
        assert asyncio.get_running_loop().time() == 6.0
        with pytest.raises(NodeKilled):
            await node.run(asyncio.sleep(10))

    run(main)


def test_a_restarted_node_of_the_same_name_is_another() -> None:
    async def main() -> None:
        first = _loop().node("silo-1")
        first.kill()
        second = _loop().node("silo-1")
        log: list[float] = []
        task = second.create_task(_tick(log))
        await asyncio.sleep(1.5)
        task.cancel()
        await asyncio.wait([task])
        assert log == [1.0]
        assert first is not second

    run(main)


def test_clocks_of_nodes_drift_apart() -> None:
    async def main() -> None:
        time = asyncio.get_running_loop().time
        fast, slow = NodeClock(time, rate=1.04, offset_s=7.0), NodeClock(time, rate=0.96)
        await asyncio.sleep(100)
        assert abs(fast() - 111.0) < 1e-6
        assert abs(slow() - 96.0) < 1e-6
        assert abs(fast.true_s(1.04) - 1.0) < 1e-6

    run(main)
    with pytest.raises(ValueError, match="above 0"):
        NodeClock(lambda: 0.0, rate=0.0)
