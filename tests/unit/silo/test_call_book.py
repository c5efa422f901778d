"""The call book: each call ends once, at its deadline at the latest, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import (
    CallExpired,
    CallTimeout,
    Closed,
    DirectoryUnavailable,
    MembershipUnavailable,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    SiloUnavailable,
)
from silo.routing.book import CallBook
from silo.routing.call import Answer, Call
from silo.serialization.registry import TypeRegistry
from silo.serialization.serializer import Serializer
from silo.testing.virtual_time import run
from silo.wire.frames import Outcome

ROOM = GrainId("room", "lobby")


@dataclass
class World:
    """A book whose calls go nowhere: what is routed and recalled is noted."""

    calls_max: int = 100
    bytes_max: int = 1_000
    routed: list[Call] = field(default_factory=list[Call])
    recalled: list[Call] = field(default_factory=list[Call])
    target: str | None = "there"
    not_started: bool = False
    """Whether a recalled call turns out not to have started."""

    def __post_init__(self) -> None:
        self.book = CallBook(
            Serializer(TypeRegistry()),
            calls_max=self.calls_max,
            bytes_max=self.bytes_max,
            lane_calls_max=10,
            large_bytes=1 << 20,
        )
        self.book.attach(self.route, self.recall)
        self._ids = iter(range(1, 1_000))

    def route(self, call: Call) -> None:
        call.target = self.target
        self.routed.append(call)

    def recall(self, call: Call) -> bool:
        self.recalled.append(call)
        return self.not_started

    def make(self, *, deadline_s: float | None = None) -> Call:
        loop = asyncio.get_running_loop()
        return Call(
            next(self._ids),
            ROOM,
            "enter",
            caller="client",
            deadline=None if deadline_s is None else loop.time() + deadline_s,
            on_answer=self.book.answered,
            path=(("room/attic", 7),),
        )

    def wait(self, call: Call) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.book.wait_for(call))


def story(play: Callable[[World], Any]) -> Callable[[], None]:
    def test() -> None:
        run(lambda: play(World()))

    test.__name__ = play.__name__
    return test


def valued(value: object) -> Answer:
    return Answer(Outcome.VALUE, value=value)


@story
async def test_an_answer_ends_a_call_once(world: World) -> None:
    call = world.make(deadline_s=1.0)
    waiting = world.wait(call)
    await asyncio.sleep(0)
    call.on_answer(call, valued("first"))
    call.on_answer(call, valued("second"))
    assert await waiting == "first"
    assert len(world.book) == 0
    await asyncio.sleep(2.0)
    assert world.recalled == []  # its deadline is of no interest any more


@story
async def test_a_call_that_was_out_at_its_deadline_may_have_run(world: World) -> None:
    waiting = world.wait(world.make(deadline_s=1.0))
    began = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout, match=r"room/lobby.enter: no answer from there .* <- room/attic"):
        await waiting
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)
    assert len(world.recalled) == 1


@story
async def test_a_call_that_is_called_back_in_time_was_not_started(world: World) -> None:
    world.not_started = True
    with pytest.raises(CallExpired):
        await world.wait(world.make(deadline_s=1.0))


@story
async def test_a_call_that_was_never_sent_says_why(world: World) -> None:
    world.target = None
    call = world.make(deadline_s=1.0)
    waiting = world.wait(call)
    await asyncio.sleep(0)
    call.obstacle = DirectoryUnavailable("redis is away")
    with pytest.raises(DirectoryUnavailable, match="redis is away"):
        await waiting


@story
async def test_whatever_kept_a_call_from_being_sent_it_was_not_executed(world: World) -> None:
    world.target = None
    call = world.make(deadline_s=1.0)
    waiting = world.wait(call)
    await asyncio.sleep(0)
    call.obstacle = MembershipUnavailable("the table is away")
    with pytest.raises(NotExecuted, match="the table is away"):
        await waiting


@story
async def test_a_caller_that_is_cancelled_calls_its_call_back(world: World) -> None:
    call = world.make(deadline_s=1.0)
    waiting = world.wait(call)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (world.recalled, call.cancelled, call.answered, len(world.book)) == ([call], True, True, 0)


@story
async def test_a_caller_that_is_cancelled_just_when_it_is_answered_calls_nothing_back(world: World) -> None:
    call = world.make()
    waiting = world.wait(call)
    await asyncio.sleep(0)
    call.on_answer(call, valued("done"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.recalled == []


@story
async def test_the_number_of_open_calls_is_bounded(world: World) -> None:
    world = World(calls_max=2)
    for _ in range(2):
        world.book.place(world.make())
    with pytest.raises(Overloaded) as caught:
        world.book.place(world.make())
    assert caught.value.limit == "calls_max"
    assert len(world.routed) == 2
    world.book.fail_all(Closed("the end"))


@story
async def test_a_call_whose_silo_is_lost_has_an_unknown_outcome(world: World) -> None:
    call = world.make()
    waiting = world.wait(call)
    await asyncio.sleep(0)
    assert world.book.sent_to("there") == [call]
    assert world.book.sent_to("elsewhere") == []
    world.book.unknown(call, "there", "its process has ended")
    with pytest.raises(SiloUnavailable, match="its process has ended"):
        await waiting


@story
async def test_the_end_of_the_book_ends_every_call_and_is_waited_for(world: World) -> None:
    waiting = [world.wait(world.make()) for _ in range(3)]
    emptied = asyncio.get_running_loop().create_task(world.book.emptied())
    await asyncio.sleep(0)
    assert not emptied.done()
    world.book.fail_all(Closed("the end"))
    await emptied
    for each in waiting:
        with pytest.raises(OutcomeUnknown, match="the end"):  # they are out, and may be running
            await each


@story
async def test_the_end_of_the_book_tells_calls_that_have_not_started_so(world: World) -> None:
    world.not_started = True
    waiting = world.wait(world.make())
    await asyncio.sleep(0)
    world.book.fail_all(Closed("the end"))
    with pytest.raises(Closed):
        await waiting


@story
async def test_a_cancellation_that_a_grain_raised_does_not_cancel_its_caller(world: World) -> None:
    call = world.make()
    waiting = world.wait(call)
    await asyncio.sleep(0)
    call.on_answer(call, Answer(Outcome.APPLICATION_ERROR, error=asyncio.CancelledError("mine")))
    await asyncio.wait([waiting])
    assert not waiting.cancelled()
    assert "CancelledError" in str(waiting.exception())
