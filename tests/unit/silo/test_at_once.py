"""A call that is run at once, in its caller's own step, is in nothing else unlike one that waits for its turn."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from silo.directory.errors import (
    CallCycle,
    CallExpired,
    CallTimeout,
    NestedCallFailed,
    OutcomeUnknown,
    SerializationError,
)
from silo.eager import NESTED_MAX
from silo.grain import Grain, current_grain, grain
from silo.grain_context import OutsideGrain
from silo.reference import with_timeout
from tests.cluster.stage import gate, say
from tests.support.memory_cluster import Scene, told

visitor: contextvars.ContextVar[str] = contextvars.ContextVar("visitor", default="nobody")


@grain(kind="booth")
class Booth(Grain):
    """Answers at once, but where it is told to wait."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.tasks: list[asyncio.Task[Any] | None] = []

    async def add(self, what: Any = None, *, again: bool = False) -> list[Any]:
        self.done += [what, what] if again else [what]
        return self.done

    async def wait(self, name: str) -> str:
        say(f"waits for {name}")
        await gate(name)
        say(f"had {name}")
        return name

    async def fail(self, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("as it was told")

    async def give_object(self) -> Any:
        return object()

    async def met(self) -> str:
        seen = visitor.get()
        visitor.set("it")
        self.tasks.append(asyncio.current_task())
        return seen

    async def met_tasks(self) -> list[bool]:
        mine = asyncio.current_task()
        return [task is mine for task in self.tasks]

    async def chain(self, *others: str) -> int:
        """Call the others, each from the one before."""
        return 1 + await self.grain(Booth, others[0]).chain(*others[1:]) if others else 1

    async def gathered(self, *others: str) -> list[int]:
        """Call several, each in a task of its own."""
        return await asyncio.gather(*(self.grain(Booth, other).chain(self.key) for other in others))

    async def names(self) -> list[str]:
        await asyncio.sleep(0)
        return [str(current_grain().id)]

    async def hurry(self, other: str) -> str:
        return await with_timeout(self.grain(Booth, other), 60.0).wait("never")

    async def late(self, other: str) -> list[Any]:
        await gate("late")
        return await self.grain(Booth, other).add("too late")

    async def go(self, waits: bool) -> str:
        self.migrate(to="b")
        if waits:
            await asyncio.sleep(0)
        return self.silo

    async def cut_short(self) -> None:
        context: Any = self._silo_context
        context.interrupt()
        await gate("never")

    async def end_lease(self) -> str:
        say("its lease ends")
        context: Any = self._silo_context
        context.right.deadline = 0.0
        return "done"


async def booths(scene: Scene, *keys: str, **settings: Any) -> list[Booth]:
    """Booths on silo a, called from there, that have been called before."""
    await scene.start("a", kinds=(Booth,), **settings)
    made = [scene.silo("a").grain(Booth, key) for key in keys]
    for booth in made:
        assert await booth.add() == [None]
    return made


def at_once(call: Any) -> Any:
    """What a call gives without anybody else having run."""
    with pytest.raises(StopIteration) as raised:
        call.send(None)
    return raised.value.value


@told
async def test_its_value_is_there_without_a_pass_of_the_loop_and_no_call_was_made_for_it(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    silo = scene.silo("a").runtime
    new_call_id = silo.catalog.premises.new_call_id
    before = new_call_id()
    assert at_once(booth.add(1)) == [None, 1]
    assert at_once(booth.add(2, again=True)) == [None, 1, 2, 2]
    assert new_call_id() == before + 1
    assert not len(silo.book)
    assert scene.cluster.activation(booth).turns.is_idle


@told
async def test_one_that_has_to_wait_is_waited_for_and_others_stand_behind_it(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    first = asyncio.create_task(booth.wait("one"))
    await scene.stage.heard("waits for one")
    assert len(scene.silo("a").runtime.book) == 1
    later = [asyncio.create_task(booth.add(number)) for number in range(3)]
    await scene.cluster.queued(booth, 3)
    scene.stage.gate("one").open()
    assert await first == "one"
    assert await later[2] == [None, 0, 1, 2]
    assert at_once(booth.add(3)) == [None, 0, 1, 2, 3]


@told
async def test_its_deadline_and_its_callers_end_reach_it_where_it_waits(scene: Scene) -> None:
    booth, _ = await booths(scene, "k", "l")
    began = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout):
        await with_timeout(booth, 2.0).wait("never")
    assert asyncio.get_running_loop().time() - began < 3.0
    call = asyncio.create_task(booth.wait("nobody"))
    await scene.stage.heard("waits for nobody")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await scene.cluster.seen(lambda: scene.cluster.activation(booth).turns.is_idle)
    assert at_once(booth.add(1)) == [None, 1]
    with pytest.raises((CallTimeout, NestedCallFailed)):
        await with_timeout(booth, 2.0).hurry("l")
    assert asyncio.get_running_loop().time() - began < 10.0


@told
async def test_what_a_grain_calls_must_be_over_when_it_must_itself(scene: Scene) -> None:
    booth, other = await booths(scene, "k", "l")
    call = asyncio.create_task(with_timeout(booth, 2.0).late("l"))
    with pytest.raises((CallTimeout, CallExpired)):
        await call
    scene.stage.gate("late").open()
    await asyncio.sleep(1.0)
    assert at_once(other.add()) == [None, None]


@told
async def test_an_error_is_raised_as_from_afar_and_leaves_the_grain_free(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    for waits in (False, True, False):
        with pytest.raises(ValueError, match="as it was told"):
            await booth.fail(waits)
    with pytest.raises(SerializationError):
        await booth.add(object())
    with pytest.raises(SerializationError):
        await booth.add(what=object())
    with pytest.raises(SerializationError):
        await booth.give_object()
    assert at_once(booth.add(1)) == [None, 1]


@told
async def test_arguments_and_results_are_nobody_elses(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    given = [1]
    had = at_once(booth.add(given))
    given.append(2)
    had.append(3)
    assert at_once(booth.add(what=given)) == [None, [1], [1, 2]]


@told
async def test_it_sees_nothing_of_its_callers_task_and_leaves_nothing_there(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    visitor.set("me")
    own = asyncio.current_task()
    assert at_once(booth.met()) == "nobody"
    assert at_once(booth.met()) == "nobody"
    assert visitor.get() == "me"
    assert asyncio.current_task() is own
    assert at_once(booth.met_tasks()) == [False, False]  # the grain has kept those tasks: they are nobody's again
    assert await booth.names() == ["booth/k"]
    with pytest.raises(OutsideGrain):
        current_grain()


@told
async def test_grains_call_each_other_so_and_a_circle_is_found(scene: Scene) -> None:
    booth, other = await booths(scene, "k", "l")
    assert at_once(booth.chain("l")) == 2
    with pytest.raises((CallCycle, NestedCallFailed)) as raised:
        await booth.chain("l", "k")
    assert "booth/k -> booth/l -> booth/k" in str(raised.value)
    with pytest.raises((CallCycle, NestedCallFailed)) as raised:
        await booth.gathered("l")
    assert "booth/k -> booth/l -> booth/k" in str(raised.value)
    assert at_once(booth.chain("l")) == 2
    assert at_once(other.chain("k")) == 2


@told
async def test_however_many_call_each_other_each_is_answered(scene: Scene) -> None:
    keys = [str(number) for number in range(3 * NESTED_MAX)]
    first, *_ = await booths(scene, *keys)
    for _ in range(3):
        assert await first.chain(*keys[1:]) == len(keys)
    assert at_once(first.chain("1")) == 2


@told
async def test_a_grain_that_asks_for_its_move_is_moved_when_its_turn_is_over(scene: Scene) -> None:
    booth, other = await booths(scene, "k", "l")
    await scene.start("b", kinds=(Booth,))
    assert at_once(booth.go(False)) == "a"
    assert await other.go(True) == "a"
    await scene.cluster.seen(lambda: scene.cluster.home(booth) == scene.cluster.home(other) == "b")
    assert await booth.add(1) == [1]


@told
async def test_its_value_is_given_when_the_silos_right_is_back_that_ended_meanwhile(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    scene.stand.cut_lease("a")
    call = asyncio.create_task(booth.end_lease())
    await scene.stage.heard("its lease ends")
    await asyncio.sleep(0)
    assert not call.done()
    behind = asyncio.create_task(booth.add(1))
    scene.stand.mend_leases()
    assert await call == "done"
    assert await behind == [None, 1]


@told
async def test_one_is_made_as_ever_where_calls_are_held_back_or_the_silo_has_stopped(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    caller = scene.silo("a").runtime.caller

    def runs_at_once() -> bool:
        return caller.at_once is not None

    assert runs_at_once()
    scene.stand.cut_lease("a")
    await scene.cluster.seen(lambda: not scene.silo("a").runtime.membership.right.is_held())
    first = asyncio.create_task(booth.add("first"))
    await asyncio.sleep(0)
    assert not runs_at_once()
    scene.stand.mend_leases()
    assert await first == [None, "first"]
    assert runs_at_once()
    await scene.cluster.stop("a")
    assert not runs_at_once()


@told
async def test_a_turn_that_is_interrupted_in_its_first_step_ends_where_it_waits(scene: Scene) -> None:
    (booth,) = await booths(scene, "k")
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await booth.cut_short()
    assert at_once(booth.add(1)) == [None, 1]
