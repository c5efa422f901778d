"""Calls that come back to their caller's silo without having run are sent again, until their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from silo.directory.addresses import Entry, GrainId
from silo.directory.errors import GrainUnplaceable, TooManyHops
from silo.grain import Grain, grain, read_only, soft_state
from silo.host import Silo
from silo.messaging.link import Link
from silo.reference import grain_id, with_hint, with_timeout
from silo.routing.call import Answer, Call
from silo.routing.comebacks import TRIES_AT_ONCE
from silo.routing.limits import RoutingLimits
from silo.settings import QueueSettings
from silo.wire.frames import Outcome, Request
from tests.cluster.stage import gate, say
from tests.support.late_rows import in_a_task
from tests.support.memory_cluster import Scene, told

LIMITS = RoutingLimits()
LONGEST_PAUSE_S = 1.5 * LIMITS.retry_pause_last_s
SHORTEST_LAST_PAUSE_S = 0.5 * LIMITS.retry_pause_last_s
GROWING_MAX = 6
"""How many pauses there are at most before they are as long as they get."""
AT_ONCE_S = 0.05


def tries_max(within_s: float) -> int:
    """How often a call that comes back each time is sent within so long, at most."""
    return 1 + TRIES_AT_ONCE + GROWING_MAX + round(within_s / SHORTEST_LAST_PAUSE_S)


@grain(kind="roamer")
class Roamer(Grain):
    noted: list[int] = soft_state(default_factory=list)

    async def where(self) -> str:
        return self.silo

    async def note(self, number: int) -> None:
        self.noted.append(number)

    @read_only
    async def listed(self) -> list[int]:
        return self.noted


def waiting_calls(silo: Silo, roamer: Roamer) -> int:
    """How many calls wait on a silo until the grain is found or placed."""
    search = silo.runtime.router.search(grain_id(roamer))
    return search.waiting_calls if search is not None else 0


class Circle:
    """Silos b and c each take the other one for the grain's home, and a takes b for it, until the circle is opened."""

    def __init__(self, scene: Scene, roamer: Roamer) -> None:
        self._scene = scene
        self._grain = grain_id(roamer)
        self.is_closed = True
        self.came: list[str] = []
        """The silos by which the call came, one after the other."""

    @contextmanager
    def drawn(self) -> Generator[Circle]:
        with ExitStack() as stack:
            for name, other in ("a", "b"), ("b", "c"), ("c", "b"):
                self._send_on(stack, name, other)
            yield self

    def _send_on(self, stack: ExitStack, name: str, other: str) -> None:
        runtime = self._scene.silo(name).runtime
        entry = Entry(self._grain, self._scene.silo(other).address, "of old", 1)
        look_up, on_request = runtime.registrar.lookup, runtime.router.on_request

        async def look_up_there(wanted: GrainId) -> Entry | None:
            return entry if self.is_closed else await look_up(wanted)

        def count(request: Request) -> None:
            self.came.append(name)
            on_request(request)

        stack.enter_context(patch.object(runtime.registrar, "look_up", in_a_task(look_up_there)))
        stack.enter_context(patch.object(runtime.router, "on_request", count))


@told
async def test_a_call_that_is_sent_in_circles_is_answered_once_the_silos_agree_again(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=(Roamer,))
    roamer = scene.silo("a").grain(Roamer, "k")
    loop = asyncio.get_running_loop()
    with Circle(scene, roamer).drawn() as circle:
        call = asyncio.create_task(with_hint(with_timeout(roamer, 30.0), "c").where())
        await asyncio.sleep(10.0)
        assert not call.done()
        circle.is_closed = False
        began = loop.time()
        assert await call == "c"
        assert loop.time() - began < LONGEST_PAUSE_S + AT_ONCE_S


@told
async def test_calls_of_one_caller_that_were_sent_in_circles_run_in_order_for_all_their_pauses(scene: Scene) -> None:
    await scene.start("a", "b", "c", kinds=(Roamer,))
    roamer = with_hint(scene.silo("a").grain(Roamer, "k"), "b")  # by the road on which they are out
    with Circle(scene, roamer).drawn() as circle:
        calls: list[asyncio.Task[None]] = []
        for number in range(20):
            calls.append(asyncio.create_task(roamer.note(number)))
            await asyncio.sleep(0.01 if number % 2 else 0.7)  # so they have come back more or less often
        await asyncio.sleep(LONGEST_PAUSE_S)
        circle.is_closed = False
        await asyncio.gather(*calls)
    assert await roamer.listed() == list(range(20))


@told
async def test_a_call_in_circles_ends_at_its_deadline_as_not_executed_and_is_sent_so_often_and_no_more(
    scene: Scene,
) -> None:
    await scene.start("a", "b", "c", kinds=(Roamer,))
    roamer = scene.silo("a").grain(Roamer, "k")
    loop = asyncio.get_running_loop()
    with Circle(scene, roamer).drawn() as circle:
        began = loop.time()
        with pytest.raises(TooManyHops, match=f"forwarded {LIMITS.hops_max} times"):
            await with_timeout(roamer, 20.0).where()
        assert loop.time() - began == pytest.approx(20.0, abs=AT_ONCE_S)
        assert 20.0 / LONGEST_PAUSE_S < circle.came.count("b") <= tries_max(20.0) * (1 + LIMITS.hops_max)
        await asyncio.sleep(LONGEST_PAUSE_S)  # whatever still goes round has ended
        sent = len(circle.came)
        await asyncio.sleep(10.0)
        assert len(circle.came) == sent
    assert len(scene.silo("a").runtime.book) == len(scene.silo("a").runtime.book.lanes) == 0


@told
async def test_a_call_that_is_sent_back_again_and_again_is_tried_until_its_deadline_and_so_often_at_most(
    scene: Scene,
) -> None:
    await scene.start("a", "b", kinds=(Roamer,))
    loop = asyncio.get_running_loop()
    sent_back = 0

    def send_back(call: Call, _: object) -> None:
        nonlocal sent_back
        sent_back += 1
        call.on_answer(call, Answer(Outcome.MOVED))

    roamer = with_hint(scene.silo("a").grain(Roamer, "k"), "b")
    with patch.object(scene.silo("b").runtime.router, "_place_here", send_back):
        began = loop.time()
        with pytest.raises(TooManyHops):
            await with_timeout(roamer, 10.0).where()
        assert loop.time() - began == pytest.approx(10.0, abs=AT_ONCE_S)
        assert 10.0 / LONGEST_PAUSE_S < sent_back <= tries_max(10.0)
        call = asyncio.create_task(with_timeout(roamer, None).where())  # it has all the time that it needs
        await asyncio.sleep(60.0)
    assert await call == "b"
    assert len(scene.silo("a").runtime.book.lanes) == 0


@told
async def test_a_call_that_was_taken_in_is_not_refused_for_want_of_room_when_it_comes_back(scene: Scene) -> None:
    """Whoever was let in may wait: it is new calls that the bound refuses."""
    (a,) = await scene.start("a", kinds=(Roamer,), queues=QueueSettings(queue_calls_max=2))
    (b,) = await scene.start("b", kinds=(Roamer,))
    come: list[Call] = []

    def keep(call: Call, _: object) -> None:
        come.append(call)

    async def look_up(_: GrainId) -> Entry | None:
        say("asked")
        await gate("the directory")
        return None

    roamer = with_hint(a.grain(Roamer, "k"), "b")
    with patch.object(b.runtime.router, "_place_here", keep):
        calls = [asyncio.create_task(roamer.where())]
        await scene.cluster.seen(lambda: len(come) == 1)
        calls += [asyncio.create_task(roamer.where()) for _ in range(4)]  # they follow it
        await scene.cluster.seen(lambda: len(come) == len(calls))
    with patch.object(a.runtime.registrar, "look_up", in_a_task(look_up)):
        for call in come:
            call.on_answer(call, Answer(Outcome.MOVED, error=GrainUnplaceable("b is full")))
        await scene.stage.heard("asked")
        await scene.cluster.seen(lambda: waiting_calls(a, roamer) == len(calls))
        scene.stage.gate("the directory").open()
        assert set(await asyncio.gather(*calls)) == {"b"}


@told
async def test_R413_a_call_whose_gateways_leave_one_by_one_as_it_comes_goes_in_by_one_that_stays(scene: Scene) -> None:
    """However many there are: each of them hands the call back, and its client tries the next."""
    silos = await scene.start(*(f"s{number}" for number in range(12)), kinds=(Roamer,))
    client = await scene.client()
    left: list[str] = []

    def leaves_as_a_call_comes(silo: Silo) -> None:
        gateway = silo.runtime.gateway
        on_request = gateway.on_request

        def leave(link: Link, request: Request) -> None:
            if len(left) < len(silos) - 1:
                left.append(silo.name)
                gateway.go_away()
            on_request(link, request)

        patching.enter_context(patch.object(gateway, "on_request", leave))

    with ExitStack() as patching:
        for silo in silos:
            leaves_as_a_call_comes(silo)
        assert await client.grain(Roamer, "k").where() in {silo.name for silo in silos}
    assert len(left) == len(silos) - 1
