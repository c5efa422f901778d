"""Deadlines: one timer for all open calls, which says of each when it is overdue, and of none too early."""

from __future__ import annotations

import asyncio
import random

import pytest

from silo.activation.turn_context import TurnContext, current_turn
from silo.directory.addresses import GrainId
from silo.routing.call import Call
from silo.routing.deadlines import ENDED_SPARE, Deadlines
from silo.testing.virtual_time import run


class World:
    """Open calls, and when each was said to be overdue."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: dict[int, Call] = {}
        self.overdue: list[tuple[int, float]] = []
        self.deadlines = Deadlines(self.open, self.on_overdue)

    def on_overdue(self, call: Call) -> None:
        assert current_turn.get() is None
        del self.open[call.id]
        call.answered = True
        self.overdue.append((call.id, self.loop.time()))

    def make(self, number: int, deadline: float) -> Call:
        call = self.open[number] = Call(
            number,
            GrainId("room", "lobby"),
            "enter",
            caller="test",
            deadline=deadline,
            on_answer=lambda _call, _answer: None,
        )
        self.deadlines.watch(number, deadline, self.loop)
        return call

    def end(self, number: int) -> None:
        self.open.pop(number).answered = True


def test_each_open_call_is_overdue_at_its_own_deadline_whatever_the_order_they_were_made_in() -> None:
    async def main() -> list[tuple[int, float]]:
        world = World()
        for number, deadline in enumerate((30.0, 5.0, 90.0, 5.5, 1.0)):
            world.make(number, deadline)
        await asyncio.sleep(2)
        world.make(7, 3.0)
        await asyncio.sleep(120)
        return world.overdue

    overdue = run(main)
    assert [number for number, _ in overdue] == [4, 7, 1, 3, 0, 2]
    assert [when for _, when in overdue] == pytest.approx([1.0, 3.0, 5.0, 5.5, 30.0, 90.0], abs=0.01)


def test_calls_that_have_ended_are_not_said_to_be_overdue() -> None:
    async def main() -> list[tuple[int, float]]:
        world = World()
        for number in range(10):
            world.make(number, 10.0 + number)
        for number in (0, 4, 9):
            world.end(number)
        await asyncio.sleep(60)
        assert len(world.deadlines) == 0
        return world.overdue

    assert [number for number, _ in run(main)] == [1, 2, 3, 5, 6, 7, 8]


def test_deadlines_of_ended_calls_stay_bounded_by_the_open_ones() -> None:
    async def main() -> None:
        world, rng = World(), random.Random(1)
        for number in range(20_000):
            world.make(number, 30.0 + rng.random())
            if number >= 100:
                world.end(number - 100)
            assert len(world.deadlines) <= 2 * 101 + ENDED_SPARE + 2

    run(main)


def test_a_call_whose_end_fails_does_not_keep_the_others_from_theirs() -> None:
    async def main() -> list[tuple[int, float]]:
        world, raised = World(), list[str]()
        world.loop.set_exception_handler(lambda _loop, context: raised.append(str(context["exception"])))
        inner = world.on_overdue

        def on_overdue(call: Call) -> None:
            if call.id == 1:
                raise RuntimeError("the first one fails")
            inner(call)

        world.deadlines = Deadlines(world.open, on_overdue)
        for number in (1, 2, 3):
            world.make(number, 1.0)
        await asyncio.sleep(2)
        assert raised == ["the first one fails"]
        return world.overdue

    assert [number for number, _ in run(main)] == [2, 3]


def test_it_is_said_in_nobodys_turn() -> None:
    async def main() -> list[tuple[int, float]]:
        world = World()
        current_turn.set(TurnContext(None, None, None))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - any turn will do
        world.make(1, 1.0)
        await asyncio.sleep(2)
        assert current_turn.get() is not None
        return world.overdue

    assert len(run(main)) == 1


def test_calls_that_have_all_ended_keep_no_timer() -> None:
    async def main() -> tuple[int, list[tuple[int, float]]]:
        world = World()
        for number in range(3):
            world.make(number, 30.0 + number)
        world.end(0)
        world.end(1)
        world.deadlines.settle()
        assert (len(world.deadlines), world.deadlines.is_idle) == (1, False)
        world.end(2)
        world.deadlines.settle()
        assert world.deadlines.is_idle
        world.make(4, 1.0)
        await asyncio.sleep(2)
        return len(world.deadlines), world.overdue

    left, overdue = run(main)
    assert left == 0
    assert [number for number, _ in overdue] == [4]
