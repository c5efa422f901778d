"""Where calls go, and how each of them ends: router, activations and callers of small clusters in memory."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Registration
from silo.directory.errors import (
    ActivationFailed,
    CallCycle,
    CallExpired,
    CallTimeout,
    GrainKindUnknown,
    GrainMoved,
    GrainUnplaceable,
    NestedCallFailed,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    SiloUnavailable,
)
from silo.directory.membership import SiloStatus
from silo.directory.turn_right import LeasedRight
from silo.grain import Grain, always_interleave, grain, one_way, read_only, soft_state
from silo.leaving import SETTLE_S
from silo.migration.outcome import MoveStatus
from silo.reference import grain_id, with_hint, with_timeout
from silo.routing.book import ANSWERED_AT_ONCE_MAX
from silo.routing.call import Answer, Call
from silo.routing.limits import VERDICT_GRACE_S
from silo.routing.placings import ENDED_SPARE
from silo.settings import QueueSettings
from silo.wire.frames import Cancel, Flag, Forwarded, GoAway, Outcome, Request
from tests.cluster.clusters import LEASE
from tests.cluster.stage import gate, say, stage
from tests.support.late_rows import in_a_task
from tests.support.memory_cluster import Scene, told


@grain(kind="desk")
class Desk(Grain):
    """Does what it is told, and says so."""

    done: list[str] = soft_state(default_factory=list)

    async def do(self, what: str) -> str:
        say(f"did {what}")
        self.done.append(what)
        stage().gate(what).open()
        return self.silo

    async def wait(self, what: str) -> str:
        say(f"began {what}")
        try:
            await gate(what)
        except asyncio.CancelledError:
            say(f"cancelled {what}")
            raise
        say(f"ended {what}")
        return self.silo

    @one_way
    async def note(self, what: str) -> None:
        say(f"noted {what}")
        self.done.append(what)

    @one_way
    async def fail_silently(self) -> None:
        say("failed")
        raise ValueError("nobody hears this")

    @read_only
    async def listed(self) -> list[str]:
        return self.done

    @read_only
    async def read_until(self, what: str) -> None:
        say(f"began {what}")
        await gate(what)

    @always_interleave
    async def peek(self) -> int:
        return len(self.done)

    @always_interleave
    async def watch(self) -> list[str]:
        """Wait for what another turn does."""
        say("watching")
        await gate("change")
        return self.done

    async def ask(self, other: str, timeout_s: float = 5.0) -> str:
        return await with_timeout(self.grain(Desk, other), timeout_s).do(f"for {self.key}")

    async def ask_and_wait(self, other: str, what: str) -> str:
        return await self.grain(Desk, other).wait(what)

    async def round_trip(self, *others: str) -> str:
        """Call the others, each from the one before, and at last this grain again."""
        if not others:
            return "back"
        return await self.grain(Desk, others[0]).round_trip(*others[1:])

    async def note_to_self(self, what: str) -> None:
        await self.grain(Desk, self.key).note(what)

    async def leave_behind(self) -> None:
        async def act_later() -> None:
            await gate("later")
            try:
                await self.grain(Desk, "other").do("too late")
            except GrainMoved:
                say("refused as moved")

        self.left = asyncio.create_task(act_later())


@grain(kind="fragile")
class Fragile(Grain):
    """Cannot be activated: something that it waits for is cancelled."""

    async def on_activate(self) -> None:
        sleeper = asyncio.ensure_future(asyncio.sleep(60))
        sleeper.cancel()
        await sleeper

    async def do(self) -> None:
        say("did")


KINDS = (Desk, Fragile)


async def at(scene: Scene, key: str, silo: str) -> Desk:
    """A desk, called from silo a, that is active on that silo."""
    desk = scene.silo("a").grain(Desk, key)
    await with_hint(desk, silo).do("first")
    assert scene.cluster.home(desk) == silo
    return desk


async def ended(call: asyncio.Task[str]) -> BaseException | None:
    """How the call failed; None where it did not."""
    await asyncio.wait([call])
    return call.exception()


# Deadlines


@pytest.mark.parametrize("home", ["a", "b"])
def test_a_deadline_says_whether_the_call_may_have_run(home: str) -> None:
    @told
    async def story(scene: Scene) -> None:
        await scene.start("a", "b", kinds=KINDS)
        desk = await at(scene, "k", home)
        began = asyncio.get_running_loop().time()
        running = asyncio.create_task(with_timeout(desk, 1.0).wait("go"))
        await scene.stage.heard("began go")
        queued = asyncio.create_task(with_timeout(desk, 0.5).do("queued"))
        assert isinstance(await ended(queued), CallExpired)  # wherever it stood: the silo that had it knows
        assert isinstance(await ended(running), CallTimeout)
        assert asyncio.get_running_loop().time() - began < 1.1
        await scene.stage.heard("cancelled go")
        assert await desk.do("later") == home
        assert "did queued" not in scene.stage.lines

    story()


@told
async def test_a_deadline_travels_to_the_calls_that_a_turn_makes(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    outer, inner = await at(scene, "outer", "b"), await at(scene, "inner", "c")
    holding = asyncio.create_task(inner.wait("go"))
    await scene.stage.heard("began go")
    began = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout):
        await with_timeout(outer, 1.0).ask("inner", 60.0)
    assert asyncio.get_running_loop().time() - began < 1.1
    await scene.cluster.seen(lambda: scene.cluster.waiting(inner) == 0)
    scene.stage.gate("go").open()
    await holding
    assert await inner.listed() == ["first"]


@told
async def test_a_call_that_nobody_can_place_ends_at_its_deadline_with_the_reason(scene: Scene) -> None:
    await scene.start("a", kinds=(Fragile,))
    began = asyncio.get_running_loop().time()
    with pytest.raises(GrainUnplaceable, match="kind"):
        await with_timeout(scene.silo("a").grain(Desk, "k"), 2.0).do("it")
    assert 2.0 <= asyncio.get_running_loop().time() - began < 2.1


@told
async def test_a_call_waits_for_a_silo_that_can_host_its_grain(scene: Scene) -> None:
    await scene.start("a", kinds=(Fragile,))
    call = asyncio.create_task(scene.silo("a").grain(Desk, "k").do("it"))
    await asyncio.sleep(1.0)
    await scene.start("b", kinds=KINDS)
    assert await call == "b"


@told
async def test_a_call_waits_for_a_directory_that_is_away_and_says_so_at_its_deadline(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    scene.stand.without_directory.add("a")
    desk = scene.silo("a").grain(Desk, "k")
    with pytest.raises(NotExecuted, match="directory"):
        await with_timeout(desk, 1.0).do("too late")
    call = asyncio.create_task(desk.do("in time"))
    await asyncio.sleep(1.0)
    scene.stand.without_directory.clear()
    assert await call == "a"


@told
async def test_a_call_that_could_not_be_sent_for_want_of_the_membership_was_not_executed(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    scene.stand.rows.register(Registration(GrainId("desk", "k"), SiloAddress("gone:1", 99), "old"))
    scene.stand.cut_lease("a")
    with pytest.raises(NotExecuted, match="membership"):
        await with_timeout(scene.silo("a").grain(Desk, "k"), 0.5).do("it")


@pytest.mark.parametrize("home", ["a", "b"])
def test_a_client_hears_too_that_its_call_expired_before_it_started(home: str) -> None:
    """It is told by its gateway a, and that by the silo that has the call, though neither was asked before."""

    @told
    async def story(scene: Scene) -> None:
        await scene.start("a", "b", kinds=KINDS)
        client = await scene.client(gateways=[scene.silo("a").endpoint])
        desk = await at(scene, "k", home)
        running = asyncio.create_task(desk.wait("go"))
        await scene.stage.heard("began go")
        began = asyncio.get_running_loop().time()
        with pytest.raises(CallExpired):
            await with_timeout(client.grain(Desk, "k"), 0.5).do("queued")
        assert asyncio.get_running_loop().time() - began < 0.6
        scene.stage.gate("go").open()
        assert await running == home
        assert await desk.listed() == ["first"]

    story()


@told
async def test_a_verdict_that_does_not_come_is_not_waited_for_beyond_its_grace(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "b")
    running = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    queued = asyncio.create_task(with_timeout(desk, 0.5).do("queued"))
    await scene.cluster.queued(desk, 1)
    scene.stand.network.cut("a", "b")
    began = asyncio.get_running_loop().time()
    assert isinstance(await ended(queued), CallTimeout)
    assert asyncio.get_running_loop().time() - began < 0.5 + VERDICT_GRACE_S + 0.01
    scene.stand.network.heal()
    scene.stage.gate("go").open()
    await running
    assert await desk.listed() == ["first"]  # the caller's word came after it, and in time


# Cancellation


@pytest.mark.parametrize("home", ["a", "b"])
def test_cancelling_a_caller_reaches_a_running_and_a_queued_call(home: str) -> None:
    @told
    async def story(scene: Scene) -> None:
        await scene.start("a", "b", kinds=KINDS)
        desk = await at(scene, "k", home)
        running = asyncio.create_task(desk.wait("go"))
        await scene.stage.heard("began go")
        queued = asyncio.create_task(desk.do("queued"))
        await scene.cluster.queued(desk, 1)
        queued.cancel()
        await scene.cluster.seen(lambda: scene.cluster.waiting(desk) == 0)
        running.cancel()
        await scene.stage.heard("cancelled go")
        assert await desk.listed() == ["first"]
        assert len(scene.silo("a").runtime.book) == 0

    story()


@told
async def test_cancelling_a_caller_reaches_what_its_callee_calls_in_turn(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    outer = await at(scene, "outer", "b")
    await at(scene, "inner", "c")
    call = asyncio.create_task(outer.ask_and_wait("inner", "go"))
    await scene.stage.heard("began go")
    call.cancel()
    await scene.stage.heard("cancelled go")


@told
async def test_readers_behind_a_writer_that_was_cancelled_start_at_once(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = await at(scene, "k", "a")
    reading = asyncio.create_task(desk.read_until("go"))
    await scene.stage.heard("began go")
    writer = asyncio.create_task(desk.do("never"))
    await scene.cluster.queued(desk, 1)
    late = asyncio.create_task(desk.listed())
    await scene.cluster.queued(desk, 2)
    assert await desk.peek() == 1  # what always interleaves waits for nobody
    writer.cancel()
    assert await late == ["first"]
    scene.stage.gate("go").open()
    await reading


@told
async def test_a_turn_that_always_interleaves_does_not_keep_writers_waiting(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = await at(scene, "k", "a")
    watching = asyncio.create_task(desk.watch())
    await scene.stage.heard("watching")
    assert await desk.do("change") == "a"
    assert await watching == ["first", "change"]


# One-way calls


@told
async def test_a_one_way_call_returns_at_once_and_runs(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "b")
    holding = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    await desk.note("this")
    await desk.fail_silently()
    assert "noted this" not in scene.stage.lines
    scene.stage.gate("go").open()
    await holding
    await scene.stage.heard("failed")
    assert await desk.listed() == ["first", "this"]


@told
async def test_one_way_calls_that_wait_go_along_with_a_move(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "a")
    holding = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    moving = asyncio.create_task(scene.silo("a").migrate(desk, to="b"))
    await scene.cluster.draining(desk)
    await desk.note("this")
    scene.stage.gate("go").open()
    await holding
    assert (await moving).moved
    await scene.stage.heard("noted this")
    assert await desk.listed() == ["first", "this"]
    await scene.cluster.seen(lambda: len(scene.silo("a").runtime.book) == 0)
    assert len(scene.silo("a").runtime.book.lanes) == 0


@told
async def test_a_one_way_call_of_a_grain_to_itself_is_no_cycle(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = await at(scene, "k", "a")
    await desk.note_to_self("later")
    await scene.stage.heard("noted later")


# Chains


@told
async def test_a_call_that_waits_for_its_own_chain_fails_at_once_and_names_the_chain(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    first = await at(scene, "first", "b")
    await at(scene, "second", "c")
    with pytest.raises(NestedCallFailed, match=r"desk/first -> desk/second -> desk/first"):
        await first.round_trip("second", "first")
    assert await first.round_trip("second") == "back"


@told
async def test_the_grain_that_closes_a_circle_sees_the_chain(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = await at(scene, "k", "a")
    with pytest.raises(NestedCallFailed) as caught:
        await desk.round_trip("k")
    assert isinstance(caught.value.__cause__, CallCycle)
    assert caught.value.__cause__.chain == ("desk/k", "desk/k")


@told
async def test_the_failure_of_an_inner_call_does_not_say_that_the_outer_one_did_not_run(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    outer, inner = await at(scene, "outer", "b"), await at(scene, "inner", "a")
    holding = asyncio.create_task(inner.wait("go"))
    await scene.stage.heard("began go")
    with pytest.raises(NestedCallFailed, match=r"CallExpired|CallTimeout"):
        await outer.ask("inner", 0.5)
    scene.stage.gate("go").open()
    await holding


# Where grains are


@told
async def test_a_grain_of_a_dead_silo_is_taken_over(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "b")
    running = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    before = await scene.cluster.entry(desk)
    await scene.cluster.kill("b")
    assert isinstance(await ended(running), SiloUnavailable)
    assert await desk.do("again") == "a"
    after = await scene.cluster.entry(desk)
    assert before is not None
    assert after is not None
    assert after.epoch > before.epoch


@told
async def test_an_entry_left_over_here_is_replaced(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    left = scene.stand.rows.register(Registration(grain_id(desk), scene.silo("a").address, "left over"))
    assert await desk.do("it") == "a"
    entry = await scene.cluster.entry(desk)
    assert left is not None
    assert entry is not None
    assert (entry.activation != "left over", entry.epoch > left.epoch) == (True, True)


@told
async def test_a_one_way_call_that_could_not_be_run_is_reported_where_it_was_made(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS, queues=QueueSettings(queue_calls_max=1))
    desk = await at(scene, "k", "b")
    waiting = asyncio.create_task(desk.wait("the gate"))
    await scene.stage.heard("began the gate")
    with patch("silo.routing.book.log.warning") as warned:
        for _ in range(3):
            await desk.note("a word")
        await desk.peek()
    scene.stage.gate("the gate").open()
    await waiting
    reported = [call.args[0] for call in warned.call_args_list]
    assert reported == ["call.one_way_not_run"] * 2


@told
async def test_a_call_that_was_cancelled_before_it_came_is_not_run_when_it_does(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "b")
    a, b = scene.silo("a").address, scene.silo("b").runtime
    payload, codec = b.codec.encode_call(("late",), {})
    forwarded = Request(7, grain_id(desk), "do", payload, codec, 5.0, "somebody", flags=Flag.FORWARDED, reply_to=a)
    b.router.on_frame(a, Cancel(7, grain_id(desk), a))  # it overtakes the call, which comes by way of a third silo
    b.router.on_request(forwarded)
    assert await desk.listed() == ["first"]


@told
async def test_a_drain_loses_no_call_though_what_forwarders_say_of_it_overtakes_each_other(scene: Scene) -> None:
    """Seed 1015 of the unnoticed faults: the call was long elsewhere when the silo closed that it had passed."""
    await scene.start("a", "b", "c", kinds=KINDS)
    desk = await at(scene, "k", "c")
    call = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    router, book = scene.silo("a").runtime.router, scene.silo("a").runtime.book
    [open_call] = book.sent_to(str(scene.silo("c").address))
    b, c = (scene.silo(name).address for name in "bc")
    router.on_frame(b, Forwarded(open_call.id, c, leg=2))
    router.on_frame(c, Forwarded(open_call.id, b, leg=1))  # said before, by one that is slow to reach
    await scene.cluster.stop("b")
    scene.stage.gate("go").open()
    assert await call == "c"


@told
async def test_a_silo_that_leaves_answers_or_sends_on_what_came_while_it_looked_for_a_grain(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    desk, b = await at(scene, "k", "a"), scene.silo("b").runtime
    look_up = b.registrar.lookup

    async def look_up_later(grain: GrainId) -> Entry | None:
        say("asked")
        await gate("the directory")
        return await look_up(grain)

    with patch.object(b.registrar, "look_up", in_a_task(look_up_later)):
        payload, codec = b.codec.encode_call(("it",), {})
        made = Request(7, grain_id(desk), "do", payload, codec, 60.0, "somebody", reply_to=scene.silo("c").address)
        b.router.on_request(made)
        await scene.stage.heard("asked")
        leaving = asyncio.create_task(scene.cluster.stop("b"))
        await asyncio.sleep(SETTLE_S)  # of the story's time
        assert not leaving.done()
        scene.stage.gate("the directory").open()
        await leaving
    await scene.stage.heard("did it")


@told
async def test_no_later_call_follows_one_to_a_silo_that_is_leaving(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    a, b = scene.silo("a"), scene.silo("b")
    first = asyncio.create_task(with_hint(a.grain(Desk, "k"), "b").wait("go"))
    await scene.stage.heard("began go")
    a.runtime.on_frame(a.runtime.links.to(b.address), GoAway())
    assert not vars(a.runtime.router)["_placings"].noted
    scene.stage.gate("go").open()
    await first


@told
async def test_a_call_of_a_kind_or_method_that_does_not_exist_fails_at_once(scene: Scene) -> None:
    silo, *_ = await scene.start("a", kinds=KINDS)

    @grain(kind="desk")
    class Newer(Grain):
        async def dance(self) -> None: ...

    await at(scene, "k", "a")
    with pytest.raises(GrainKindUnknown, match="dance"):
        await silo.grain(Newer, "k").dance()


@told
async def test_a_call_runs_what_its_grain_is_where_it_runs_whatever_class_the_caller_knows(scene: Scene) -> None:
    @grain(kind="desk")
    class Interface(Grain):
        async def do(self, what: str) -> str:
            raise NotImplementedError

    silos = await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "a")
    assert [await silo.grain(Interface, "k").do(silo.name) for silo in silos] == ["a", "a"]
    assert await desk.listed() == ["first", "a", "b"]


@told
async def test_a_call_that_came_back_can_be_cancelled_before_it_is_sent_again(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)

    def send_back(call: Call, _: object) -> None:
        say("sent back")
        call.on_answer(call, Answer(Outcome.MOVED))

    with patch.object(scene.silo("b").runtime.router, "_place_here", send_back):
        call = asyncio.create_task(with_hint(scene.silo("a").grain(Desk, "k"), "b").do("it"))
        await scene.stage.heard("sent back", times=4)
        call.cancel()
        await asyncio.wait([call])
    assert len(scene.silo("a").runtime.book) == len(scene.silo("a").runtime.book.lanes) == 0


@told
async def test_the_bound_of_a_queue_refuses_at_once(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS, queues=QueueSettings(queue_calls_max=2))
    desk = await at(scene, "k", "b")
    holding = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    waiting = [asyncio.create_task(desk.do(str(number))) for number in range(2)]
    await scene.cluster.queued(desk, 2)
    with pytest.raises(Overloaded) as caught:
        await desk.do("one too many")
    assert caught.value.limit == "queue_calls_max"
    scene.stage.gate("go").open()
    await asyncio.gather(holding, *waiting)


@pytest.mark.parametrize("home", ["a", "b"])
def test_the_bytes_of_a_queue_are_bounded_too(home: str) -> None:
    @told
    async def story(scene: Scene) -> None:
        await scene.start("a", "b", kinds=KINDS, queues=QueueSettings(queue_bytes_max=10_000))
        desk = await at(scene, "k", home)
        holding = asyncio.create_task(desk.wait("go"))
        await scene.stage.heard("began go")
        waiting = asyncio.create_task(desk.do("x" * 6_000))
        await scene.cluster.queued(desk, 1)
        with pytest.raises(Overloaded) as caught:
            await desk.do("y" * 6_000)
        assert caught.value.limit == "queue_bytes_max"
        scene.stage.gate("go").open()
        await asyncio.gather(holding, waiting)
        await desk.do("z" * 60_000)

    story()


@told
async def test_the_bytes_of_calls_that_wait_for_their_grain_to_be_found_are_bounded(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS, queues=QueueSettings(queue_bytes_max=10_000))
    scene.stand.without_directory.add("a")
    desk = scene.silo("a").grain(Desk, "k")
    waiting = asyncio.create_task(desk.do("x" * 6_000))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await desk.do("y" * 6_000)
    assert caught.value.limit == "queue_bytes_max"
    scene.stand.without_directory.clear()
    assert await waiting == "a"


@told
async def test_the_bytes_of_all_calls_from_other_silos_are_bounded(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    await scene.start("c", kinds=KINDS, queues=QueueSettings(silo_queue_bytes_max=10_000))
    desk = await at(scene, "k", "c")
    holding = asyncio.create_task(desk.wait("x" * 6_000))
    await scene.stage.heard("began " + "x" * 6_000)
    with pytest.raises(Overloaded) as caught:
        await desk.do("y" * 6_000)
    assert caught.value.limit == "silo_queue_bytes_max"
    scene.stage.gate("x" * 6_000).open()
    await holding
    await desk.do("y" * 6_000)
    assert scene.silo("c").runtime.router.arrived_count == 0


@told
async def test_the_bytes_of_the_calls_that_one_silo_makes_are_bounded(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS, queues=QueueSettings(silo_queue_bytes_max=10_000))
    desk = scene.silo("a").grain(Desk, "k")
    holding = asyncio.create_task(desk.wait("x" * 6_000))
    await scene.stage.heard("began " + "x" * 6_000)
    with pytest.raises(Overloaded) as caught:
        await desk.do("y" * 6_000)
    assert caught.value.limit == "silo_queue_bytes_max"
    scene.stage.gate("x" * 6_000).open()
    await holding
    await desk.do("y" * 6_000)


@told
async def test_what_is_noted_of_placings_is_bounded_though_their_calls_time_out(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    for number in range(ENDED_SPARE + 50):
        desk = with_hint(scene.silo("a").grain(Desk, f"k{number}"), "b")
        with pytest.raises(CallTimeout):
            await with_timeout(desk, 0.1).wait("never")
    assert len(vars(scene.silo("a").runtime.router)["_placings"].noted) <= ENDED_SPARE + 3


@told
async def test_a_placing_whose_call_has_ended_is_not_followed(scene: Scene) -> None:
    """Two silos whose notes of old placings named each other once sent a call to and fro between them."""
    await scene.start("a", "b", "c", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    scene.stand.without_directory.add("b")  # so nobody hears what became of the placing there
    with pytest.raises(CallExpired):
        await with_timeout(with_hint(desk, "b"), 0.5).do("lost")
    assert await with_timeout(with_hint(desk, "c"), 5.0).do("found") == "c"


@told
async def test_the_call_of_another_silo_follows_no_placing_though_its_call_is_still_out(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    desk, a = scene.silo("a").grain(Desk, "k"), scene.silo("a").address
    scene.stand.without_directory.add("b")
    placing = asyncio.create_task(with_timeout(with_hint(desk, "b"), 10.0).do("waits at b"))
    await scene.cluster.seen(lambda: scene.silo("b").runtime.router.arrived_count == 1)
    scene.silo("c").runtime.cache.learn(Entry(grain_id(desk), a, "of old", 1))
    call = with_timeout(with_hint(scene.silo("c").grain(Desk, "k"), "c"), 5.0).do("found")
    assert await call == "c"
    scene.stand.without_directory.clear()
    assert await placing == "c"


@told
async def test_calls_of_one_caller_that_a_silo_has_to_place_for_another_one_are_placed_together(scene: Scene) -> None:
    """They once went to two silos: the earlier one lost the registration, and arrived behind the later ones."""
    await scene.start("a", "b", "c", kinds=KINDS)
    a, c = scene.silo("a"), scene.silo("c")
    desk = c.grain(Desk, "k")
    c.runtime.cache.learn(Entry(grain_id(desk), a.address, "of old", 1))
    scene.stand.without_directory.add("b")
    first = asyncio.create_task(with_timeout(with_hint(desk, "b"), 10.0).do("first"))
    second = asyncio.create_task(with_timeout(with_hint(desk, "c"), 10.0).do("second"))
    await scene.cluster.seen(lambda: scene.silo("b").runtime.router.arrived_count == 2)
    scene.stand.without_directory.clear()
    assert list(await asyncio.gather(first, second)) == ["b", "b"]
    assert await desk.listed() == ["first", "second"]


@told
async def test_a_hook_that_ends_in_cancellation_is_a_failed_activation(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    with pytest.raises(ActivationFailed, match="CancelledError"):
        await scene.silo("a").grain(Fragile, "k").do()
    assert not scene.cluster.is_active(scene.silo("a").grain(Fragile, "k"))


@told
async def test_an_ordinary_call_that_joins_a_question_for_the_grain_activates_it(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    move = asyncio.create_task(scene.silo("a").migrate(desk, to="a"))
    call = asyncio.create_task(desk.do("it"))
    outcome, home = await asyncio.gather(move, call)
    assert home == "a"
    assert outcome.status in (MoveStatus.NOT_ACTIVE, MoveStatus.REFUSED)
    assert (await scene.silo("a").migrate(scene.silo("a").grain(Desk, "other"), to="a")).status is MoveStatus.NOT_ACTIVE


@told
async def test_calls_keep_their_order_while_their_grain_moves_about(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    desk = await at(scene, "k", "b")
    calls: list[asyncio.Task[str]] = []
    for number in range(60):
        calls.append(asyncio.create_task(desk.do(str(number))))
        if number % 15 == 0:
            to = "abc"[number // 15 % 3]
            calls.append(asyncio.create_task(moved(scene, desk, to)))
        await asyncio.sleep(0.000_3)
    await asyncio.gather(*calls)
    assert await desk.listed() == ["first", *map(str, range(60))]
    await scene.cluster.seen(lambda: all(not len(silo.runtime.book.lanes) for silo in scene.cluster.silos.values()))


@told
async def test_a_call_that_was_held_back_stays_before_one_that_was_made_later(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=KINDS)
    desk = await at(scene, "k", "b")
    cache, entry = scene.silo("a").runtime.cache, await scene.cluster.entry(desk)
    assert entry is not None
    calls = [asyncio.create_task(desk.wait("go"))]
    await scene.stage.heard("began go")
    cache.learn(Entry(entry.grain, scene.silo("c").address, "elsewhere", entry.epoch + 1))
    calls.append(asyncio.create_task(desk.do("1")))  # by another way than the one that is out: it waits for that
    await asyncio.sleep(0)
    scene.stand.without_directory.add("a")
    cache.forget_grain(entry.grain)
    calls.append(asyncio.create_task(desk.do("2")))  # asks the directory where to
    await asyncio.sleep(0.1)
    scene.stage.gate("go").open()
    await calls[0]
    scene.stand.without_directory.clear()
    await asyncio.gather(*calls)
    assert await desk.listed() == ["first", "1", "2"]


async def moved(scene: Scene, desk: Desk, to: str) -> str:
    return str(await scene.silo("a").migrate(desk, to=to))


# Those who may not act


@told
async def test_what_an_activation_left_behind_may_not_act_for_its_grain(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "a")
    await desk.leave_behind()
    assert (await scene.silo("a").migrate(desk, to="b")).moved
    scene.stage.gate("later").open()
    await scene.stage.heard("refused as moved")
    assert "did too late" not in scene.stage.lines


@told
async def test_calls_made_together_keep_their_order_however_many_were_answered_at_once(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    for number in range(0, 3 * ANSWERED_AT_ONCE_MAX, 3):
        await asyncio.gather(*(desk.do(str(number + each)) for each in range(3)))
    assert await desk.listed() == [str(number) for number in range(3 * ANSWERED_AT_ONCE_MAX)]


@told
async def test_a_caller_whose_calls_are_all_answered_at_once_lets_others_run(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    await desk.do("it")
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    for _ in range(ANSWERED_AT_ONCE_MAX):
        await desk.listed()
    assert ran.is_set()


@told
async def test_a_fenced_silo_starts_nothing_until_its_lease_is_renewed(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = await at(scene, "k", "a")
    scene.stand.cut_lease("a")
    await scene.cluster.seen(lambda: not scene.silo("a").runtime.membership.right.is_held())
    call = asyncio.create_task(desk.do("held"))
    began = asyncio.get_running_loop().time()
    with pytest.raises(CallExpired, match="lease"):
        await with_timeout(desk, 1.0).do("too late")
    assert asyncio.get_running_loop().time() - began < 1.1
    assert "did held" not in scene.stage.lines
    scene.stand.mend_leases()
    assert await call == "a"
    assert await desk.listed() == ["first", "held"]


@told
async def test_the_calls_of_a_silo_that_stops_end_with_it_though_it_could_not_leave_in_order(scene: Scene) -> None:
    await scene.start("a", kinds=KINDS)
    desk = scene.silo("a").grain(Desk, "k")
    call = asyncio.create_task(with_timeout(desk, 3_000.0).wait("never"))
    await scene.stage.heard("began never")
    scene.stand.cut_lease("a")
    await scene.silo("a").drain_and_stop()
    assert isinstance(await asyncio.wait_for(ended(call), 1.0), OutcomeUnknown)


@told
async def test_a_silo_that_loses_its_lease_while_it_drains_gives_up_with_it(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "a")
    call = asyncio.create_task(with_timeout(desk, 3_000.0).wait("never"))
    await scene.stage.heard("began never")
    stopping = asyncio.create_task(scene.silo("a").drain_and_stop())
    await scene.cluster.draining(desk)
    scene.stand.cut_lease("a")
    began = asyncio.get_running_loop().time()
    await stopping
    assert asyncio.get_running_loop().time() - began < 1.6 * LEASE.lease_s
    assert isinstance(await ended(call), OutcomeUnknown)


@told
async def test_a_lease_that_comes_back_at_once_ends_no_drain(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "a")
    call = asyncio.create_task(desk.wait("go"))
    await scene.stage.heard("began go")
    stopping = asyncio.create_task(scene.silo("a").drain_and_stop())
    await scene.cluster.draining(desk)
    for name in "ab":  # so nobody can declare it dead, either
        scene.stand.cut_lease(name)
    await scene.cluster.seen(lambda: not scene.silo("a").runtime.membership.right.is_held())
    scene.stand.mend_leases()
    await scene.cluster.seen(lambda: scene.silo("a").runtime.membership.right.is_held())
    await asyncio.sleep(LEASE.lease_s)
    scene.stage.gate("go").open()
    assert await call == "a"
    await stopping
    assert await scene.silo("b").grain(Desk, "k").listed() == ["first"]


@told
async def test_a_silo_is_left_by_nothing_though_its_drain_goes_wrong_in_a_way_that_nobody_foresaw(scene: Scene) -> None:
    silo = (await scene.start("a", kinds=KINDS))[0]
    with patch("silo.runtime.move_everything", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        await silo.drain_and_stop()
    await scene.start("a", kinds=KINDS)  # its endpoint is free again


@told
async def test_a_silo_whose_lease_fails_gives_up_everything_and_says_why_it_ended(scene: Scene) -> None:
    silo = (await scene.start("a", kinds=KINDS))[0]
    call = asyncio.create_task(with_timeout(silo.grain(Desk, "k"), 3_000.0).wait("never"))
    await scene.stage.heard("began never")
    scene.stand.with_broken_lease.add("a")
    with pytest.raises(RuntimeError, match="a mistake in the lease"):
        await silo.wait_stopped()
    assert isinstance(await asyncio.wait_for(ended(call), 1.0), OutcomeUnknown)
    assert not silo.activations()


@told
async def test_a_call_that_ran_on_a_fenced_silo_is_not_said_not_to_have_run_when_the_silo_is_declared_dead(
    scene: Scene,
) -> None:
    """Its answer is held until the lease is renewed, which never happens: nobody may take it for safe to repeat."""
    await scene.start("a", "b", kinds=KINDS)
    own = with_timeout(with_hint(scene.silo("b").grain(Desk, "k"), "b"), 300.0)
    assert await own.do("first") == "b"
    running = asyncio.create_task(own.wait("go"))
    await scene.stage.heard("began go")
    queued = asyncio.create_task(own.do("queued"))
    await scene.cluster.queued(own, 1)
    scene.stand.cut_lease("b")
    runtime = scene.silo("b").runtime
    right = runtime.membership.right
    assert isinstance(right, LeasedRight)
    await scene.cluster.seen(lambda: not right.is_held())
    scene.stage.gate("go").open()
    await scene.stage.heard("ended go")
    right.resign("it was declared dead")  # the turns hear of it before the silo gives everything up
    await scene.cluster.seen(lambda: not len(runtime.catalog.premises.running))
    await scene.cluster.kill("b")
    assert isinstance(await asyncio.wait_for(ended(running), 1.0), OutcomeUnknown)
    assert isinstance(await asyncio.wait_for(ended(queued), 1.0), NotExecuted)
    assert "did queued" not in scene.stage.lines


@told
async def test_a_silo_that_was_declared_dead_gives_up_its_grains_and_comes_back(scene: Scene) -> None:
    await scene.start("a", "b", kinds=KINDS)
    desk = await at(scene, "k", "b")
    old = scene.silo("b").address
    scene.stand.cut_lease("b")
    await scene.cluster.seen(lambda: scene.silo("a").view.is_dead(old))
    assert await desk.do("elsewhere") == "a"
    scene.stand.mend_leases()
    await scene.cluster.seen(lambda: scene.silo("b").address != old)
    await scene.cluster.seen(lambda: (row := scene.silo("a").view.named("b")) and row.status is SiloStatus.ACTIVE)
    assert await with_hint(scene.silo("a").grain(Desk, "another"), "b").do("it") == "b"
