"""Links over a simulated network, under virtual time."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import HandshakeRefused
from silo.messaging.direct_lane import DirectLane
from silo.messaging.greeting import Identity, RefusalCode
from silo.messaging.limits import LinkLimits
from silo.messaging.link import Link
from silo.messaging.permissions import Role
from silo.messaging.transport import ConnectionLost
from silo.testing.network import MemoryNetwork
from silo.testing.virtual_time import run
from silo.wire.frames import Flag, Frame, Load, Order, Orders, Reply, Request

from .link_world import GRAIN, LaneTransport, Process, ids, request, silo_identity


class World:
    """Processes on one simulated network, closed in the end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.network = MemoryNetwork(random.Random(seed + 1))
        self.processes: list[Process] = []

    async def silo(self, name: str, incarnation: int = 1, *, direct: bool = False, **options: Any) -> Process:
        identity = silo_identity(f"{name}:1", incarnation)
        if direct:
            options["lane"] = DirectLane(LaneTransport(self.network.transport(name)), f"{name}:2")
        process = Process(self.network.transport(name), identity, seed=self.seed, **options)
        await process.listen(f"{name}:1")
        self.processes.append(process)
        return process

    def client(self, name: str, role: Role = Role.CLIENT, **options: Any) -> Process:
        process = Process(
            self.network.transport(name),
            Identity(name, role, "test"),
            seed=self.seed + 1_000 * len(self.processes),
            **options,
        )
        self.processes.append(process)
        return process

    async def close(self) -> None:
        self.network.heal()
        for process in self.processes:
            await process.close()


@asynccontextmanager
async def world(seed: int) -> AsyncGenerator[World]:
    made = World(seed)
    try:
        yield made
    finally:
        await made.close()


def simulated(story: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """The test runs under virtual time, with a few seeds; a task that is left behind fails it."""

    @functools.wraps(story)
    def test() -> None:
        for seed in range(5):

            async def main(seed: int = seed) -> None:
                async with world(seed) as made:
                    await story(made)

            run(main, seed=seed, seconds_max=600)

    del test.__wrapped__  # its argument is no fixture
    return test


def only_link(process: Process) -> Link:
    (link,) = process.links.all()
    return link


@simulated
async def test_frames_may_be_sent_before_the_link_stands(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    two.answers = True
    for number in range(5):
        one.links.to(two.address).send(request(number))
    assert await one.got_ids(5) == [0, 1, 2, 3, 4]
    assert only_link(two).peer.silo == one.address
    assert two.links.get(str(one.address)) is only_link(two)


@simulated
async def test_a_link_begun_while_its_peer_is_being_greeted_loses_nothing_that_the_peer_has_sent(world: World) -> None:
    for moment in range(20):
        one, two = await world.silo(f"one{moment}"), await world.silo(f"two{moment}")
        one.links.to(two.address).send(Reply(1, 0))
        await asyncio.sleep(moment * 0.000_3)  # virtual: somewhere between the first word of the greeting and the last
        two.links.to(one.address).send(Reply(2, 0))
        assert (await one.got_ids(1), await two.got_ids(1)) == ([2], [1])
        assert (one.lost, two.lost) == ([], [])


@simulated
async def test_both_may_dial_at_once_and_one_session_and_one_connection_remain(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    for number in range(50):
        one.links.to(two.address).send(Reply(number, 0))
        two.links.to(one.address).send(Reply(number, 0))
        await asyncio.sleep(0.000_2)
    assert await one.got_ids(50) == list(range(50))
    assert await two.got_ids(50) == list(range(50))
    await asyncio.sleep(3)
    assert one.lost == two.lost == []
    assert only_link(one).opened == only_link(two).opened
    assert only_link(one).attached
    assert only_link(two).attached
    assert only_link(one).connections <= 2


@pytest.mark.parametrize("direct", [False, True], ids=["one_way_to_go", "with_the_direct_lane"])
def test_no_frame_is_lost_repeated_or_reordered_while_connections_break_and_come_again_in_time(direct: bool) -> None:
    def story(seed: int) -> None:
        async def main() -> None:
            async with world(seed) as made:
                # cuts may follow one another, and some come as the lane takes the place of the stream
                patient = LinkLimits(link_resume_s=60, direct_trust_s=0.5, direct_retry_s=1.0)
                one = await made.silo("one", direct=direct, limits=patient)
                two = await made.silo("two", direct=direct, limits=patient)
                for number in range(300):
                    for source, target in ((one, two), (two, one)):
                        size = made.rng.choice([0, 0, 0, 10_000])
                        source.links.to(target.address).send(Reply(number, 0, bytes(size)))
                    match made.rng.randrange(30):
                        case 0:
                            made.network.reset("one", "two")
                        case 1:
                            made.network.cut("one", "two", one_way=made.rng.random() < 0.5)
                            await asyncio.sleep(made.rng.uniform(0, 3))
                            made.network.heal()
                        case 2:
                            await asyncio.sleep(made.rng.uniform(0, 3))
                        case _:
                            await asyncio.sleep(made.rng.uniform(0, 0.003))
                await asyncio.sleep(15)
                assert one.lost == two.lost == []
                assert ids(one.got) == list(range(300))
                assert ids(two.got) == list(range(300))

        run(main, seed=seed, seconds_max=3_000)

    for seed in range(20 if direct else 40):
        story(seed)


@simulated
async def test_a_cut_way_is_noticed_by_silence_and_the_session_goes_on_when_it_heals(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    await asyncio.sleep(0.5)
    world.network.cut("one", "two")
    link.send(request(2))
    await asyncio.sleep(5.5)
    assert not link.attached
    world.network.heal()
    assert await two.got_ids(2) == [1, 2]
    assert one.lost == []
    assert link.connections == 2


@simulated
async def test_a_session_without_connection_ends_and_tells_unsent_from_unknown(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    await asyncio.sleep(1)
    world.network.cut("one", "two")
    link.send(request(2))
    await asyncio.sleep(5)
    assert not link.attached
    link.send(request(3))
    await one.until(lambda: bool(one.lost))
    assert one.lost == [([3], [2], f"no connection to {two.address} for 5.0 s")]
    assert link.ending is not None
    assert one.links.all() == []
    world.network.heal()
    one.links.to(two.address).send(request(4))
    await two.until(lambda: 4 in ids(two.got))
    assert ids(two.got)[0] == 1
    assert len(two.lost) <= 1


@simulated
async def test_what_is_sent_on_a_link_that_has_ended_comes_back(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    one.links.end(two.address, "it is dead")
    link.send(request(2))
    assert len(one.lost) == 1
    await one.until(lambda: len(one.lost) == 2)
    assert one.lost[1] == ([2], [], "it is dead")


@simulated
async def test_a_silo_that_nobody_listens_for_is_given_up_and_nothing_of_it_was_sent(world: World) -> None:
    one = await world.silo("one")
    one.links.to(SiloAddress("nowhere:1", 1)).send(request(1))
    await one.until(lambda: bool(one.lost), timeout_s=6)
    assert one.lost[0][:2] == ([1], [])


@simulated
async def test_another_incarnation_at_the_endpoint_ends_the_link_at_once(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two", 2)
    one.links.to(SiloAddress(two.address.endpoint, 1)).send(request(1))
    await one.until(lambda: bool(one.lost), timeout_s=1)
    assert one.lost == [([1], [], "here is two:1@2, not two:1@1")]
    assert one.lost_links[0].ending is not None
    assert one.lost_links[0].ending.code is RefusalCode.INCARNATION


@simulated
async def test_a_silo_that_restarts_on_its_endpoint_is_reached_within_two_seconds_S114(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    one.links.to(two.address).send(request(1))
    await two.got_ids(1)
    await two.close()
    assert not two.links.all()
    again = Process(world.network.transport("two"), silo_identity("two:1", 2), seed=9)
    world.processes.append(again)
    await asyncio.sleep(3)
    one.links.to(again.address).send(request(2))
    await asyncio.sleep(3)
    await again.listen("two:1")
    await again.until(lambda: ids(again.got) == [2], timeout_s=2)


@simulated
async def test_a_dead_silo_is_lost_at_once_and_refused_from_then_on(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    one.links.to(two.address).send(request(1))
    await two.got_ids(1)
    one.links.end(two.address, "declared dead by version 7")
    assert [because for _, _, because in one.lost] == ["declared dead by version 7"]
    await two.until(lambda: bool(two.lost))
    assert "declared dead by version 7" in two.lost[0][2]
    assert two.lost_links[0].ending is not None
    assert two.lost_links[0].ending.code is RefusalCode.DEAD
    two.links.to(one.address).send(request(2))
    await two.until(lambda: len(two.lost) == 2, timeout_s=1)
    assert two.lost[1][0] == [2]
    one.links.to(two.address).send(request(3))
    await one.until(lambda: len(one.lost) == 2)
    assert one.got == []


@simulated
async def test_frames_of_a_dead_silo_that_were_on_their_way_are_dropped(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    two.on_frame_also = lambda link, frame: two.links.end(one.address, "dead")
    link = one.links.to(two.address)
    for number in range(10):
        link.send(request(number))
    await one.until(lambda: bool(one.lost))
    assert ids(two.got) == [0]


@simulated
async def test_a_peer_that_lost_its_session_begins_another_and_ours_is_lost(world: World) -> None:
    two = await world.silo("two")
    first = world.client("someone")
    (await first.links.dial_gateway("two:1")).send(request(1))
    await two.got_ids(1)
    second = world.client("someone")  # a restart under the same name
    (await second.links.dial_gateway("two:1")).send(request(2))
    assert await two.got_ids(2) == [1, 2]
    assert [because for _, _, because in two.lost] == ["someone has begun a new session"]
    assert only_link(two).attached


@simulated
async def test_a_client_learns_who_answers_at_a_gateway_and_reaches_it_again(world: World) -> None:
    two, client = await world.silo("two"), world.client("client")
    two.answers = True
    link = await client.links.dial_gateway("two:1")
    assert link.peer.silo == two.address
    assert await client.links.dial_gateway("two:1") is link
    link.send(request(1))
    await client.got_ids(1)
    world.network.reset("client", "two")
    link.send(request(2))
    assert await client.got_ids(2) == [1, 2]
    assert client.lost == two.lost == []


@simulated
async def test_a_client_that_finds_another_incarnation_after_a_restart_loses_its_link(world: World) -> None:
    two, client = await world.silo("two"), world.client("client")
    link = await client.links.dial_gateway("two:1")
    link.send(request(1))
    await two.got_ids(1)
    await two.close()
    await client.until(lambda: bool(client.lost))
    assert link.ending is not None
    again = await world.silo("two", 2)
    assert (await client.links.dial_gateway("two:1")).peer.silo == again.address


@simulated
async def test_a_silo_that_was_said_to_be_dead_is_reached_again_once_it_is_revived_or_dialled_all_the_same(
    world: World,
) -> None:
    two, client = await world.silo("two"), world.client("client")
    await client.links.dial_gateway("two:1")
    client.links.end(two.address, "declared dead")
    with pytest.raises(ConnectionLost):
        await client.links.dial_gateway("two:1")
    again = await client.links.dial_gateway("two:1", even_dead=True)
    again.send(request(1))
    assert await two.got_ids(1) == [1]
    client.links.end(two.address, "declared dead")
    assert client.links.to(two.address).ending is not None
    client.links.revive(two.address)
    client.links.to(two.address).send(request(2))
    assert await two.got_ids(2) == [1, 2]


@simulated
async def test_a_gateway_that_refuses_or_is_not_there_is_an_error_of_the_dial(world: World) -> None:
    await world.silo("two")
    with pytest.raises(HandshakeRefused, match="token"):
        await world.client("stranger", token=None).links.dial_gateway("two:1")
    with pytest.raises(ConnectionLost):
        await world.client("lost").links.dial_gateway("nowhere:1")


@pytest.mark.parametrize(
    "frame",
    [
        request(1, flags=Flag.CONTROL),
        request(1, flags=Flag.PLACED),
        Orders((Order(1, GRAIN, None),), "m", b"", 1, "caller", Flag.CONTROL),
        Load(1),
        Reply(1, 0),
    ],
    ids=repr,
)
def test_a_client_that_says_what_only_silos_may_is_put_out_and_told_why(frame: Frame) -> None:
    async def main() -> None:
        async with world(1) as made:
            two, client = await made.silo("two"), made.client("client")
            link = await client.links.dial_gateway("two:1")
            link.send(frame)
            await client.until(lambda: bool(client.lost))
            assert link.ending is not None
            assert link.ending.code is RefusalCode.PERMISSION
            assert "not permitted" in client.lost[0][2]
            assert two.got == []
            assert len(two.lost) == 1

    run(main, seed=1)


@simulated
async def test_a_handler_that_fails_ends_the_link_with_its_reason_and_nothing_hangs_S108(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")

    def fail(link: Link, frame: Frame) -> None:
        raise asyncio.CancelledError

    two.on_frame_also = fail
    one.links.to(two.address).send(request(1))
    await one.until(lambda: bool(one.lost), timeout_s=1)
    assert "could not deal with a frame" in one.lost[0][2]
    two.on_frame_also = lambda link, frame: None
    one.links.to(two.address).send(request(2))
    await two.until(lambda: ids(two.got) == [1, 2])


@simulated
async def test_large_payloads_do_not_hold_up_small_calls(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    two.answers = True
    link = one.links.to(two.address)
    for number in range(3):
        link.send(request(number, bytes(2_000_000)))
    link.send(request(9))
    assert (await one.got_ids(4))[0] == 9
    assert all(len(reply.payload) == 2_000_000 for reply in one.got[1:] if isinstance(reply, Reply))


@simulated
async def test_a_link_that_is_hurried_writes_what_waits_before_all_that_came_in_is_dealt_with(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(0))
    await two.got_ids(1)
    told: list[str] = []

    def deal_with(back: Link, frame: Frame) -> None:
        assert isinstance(frame, Request)
        told.append(f"dealt with {frame.id}")
        back.send(Reply(frame.id, 0, b""), on_written=lambda: told.append(f"answered {frame.id}"))
        if frame.id == 2:
            back.hurry()

    two.on_frame_also = deal_with
    for number in (1, 2, 3):
        link.send(request(number))
    assert await one.got_ids(3) == [1, 2, 3]
    assert told == ["dealt with 1", "dealt with 2", "answered 1", "answered 2", "dealt with 3", "answered 3"]


@simulated
async def test_a_deadline_travels_as_time_left(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1), deadline=asyncio.get_running_loop().time() + 10)
    await two.got_ids(1)
    (got,) = two.got
    assert isinstance(got, Request)
    assert got.left_s is not None
    assert 9.9 < got.left_s <= 10


@simulated
async def test_the_view_version_of_the_peer_is_told_when_it_grows(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    one.links.to(two.address).send(request(1))
    await two.until(lambda: two.views == [1])
    one.view = 7
    await two.until(lambda: two.views == [1, 7])


@simulated
async def test_what_was_received_is_acknowledged_soon_though_nothing_is_said(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    await asyncio.sleep(0.2)
    assert link.session.idle


@simulated
async def test_closing_gets_what_is_queued_across_and_tells_the_peer(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    for number in range(1_000):
        link.send(Reply(number, 0))
    await one.close(grace_s=5)
    assert ids(two.got) == list(range(1_000))
    assert one.lost == [([], [], f"{one.address} closed")]
    await two.until(lambda: bool(two.lost))
    assert two.lost == [([], [], f"{one.address} closed")]
    one.links.to(two.address).send(request(1))
    await one.until(lambda: len(one.lost) == 2)


@simulated
async def test_closing_does_not_wait_longer_than_its_grace_for_who_does_not_answer(world: World) -> None:
    one, two = await world.silo("one"), await world.silo("two")
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    await asyncio.sleep(0.5)
    world.network.cut("one", "two")
    link.send(request(2))
    began = asyncio.get_running_loop().time()
    await one.links.close(2.0)
    assert asyncio.get_running_loop().time() - began < 4
    assert one.lost[0][1] == [2]


@simulated
async def test_the_number_of_greetings_is_bounded(world: World) -> None:
    two = await world.silo("two", limits=LinkLimits(greetings_max=1))
    silent = world.network.transport("silent")
    await silent.dial("two:1")
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLost):
        await world.client("client").links.dial_gateway("two:1")
    await asyncio.sleep(3)  # the silent one is put out
    await world.client("client").links.dial_gateway("two:1")
    await two.until(lambda: two.attached == 1)
    await silent.close()


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[tuple[float, int]]:
        times: list[tuple[float, int]] = []

        async def main() -> None:
            async with world(seed) as made:
                one, two = await made.silo("one"), await made.silo("two")
                loop = asyncio.get_running_loop()
                two.on_frame_also = lambda link, frame: times.append((loop.time(), ids([frame])[0]))
                for number in range(50):
                    one.links.to(two.address).send(request(number))
                    if number % 10 == 0:
                        made.network.reset("one")
                    await asyncio.sleep(0.01)
                await two.got_ids(50)

        run(main, seed=seed)
        return times

    assert trace(3) == trace(3)


# ------------------------------------------------------------------------------------------------------ the direct lane


def lane_of(process: Process) -> LaneTransport:
    assert process.lane is not None
    assert isinstance(process.lane.transport, LaneTransport)
    return process.lane.transport


@simulated
async def test_silos_that_have_met_talk_by_the_direct_lane(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two", direct=True)
    link = one.links.to(two.address)
    for number in range(10):
        link.send(request(number))
    assert await two.got_ids(10) == list(range(10)), "the stream carries them until the lane is there"
    await asyncio.sleep(1)
    assert link.connections == 2
    assert len(lane_of(one).dialled) == 1
    await lane_of(one).dialled[0].close()
    link.send(request(10))
    assert await two.got_ids(11) == list(range(11)), "nothing is lost when it breaks"


@simulated
async def test_a_direct_lane_that_cannot_be_dialled_costs_nothing_but_the_attempt(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two", direct=True)
    lane_of(one).fails = lane_of(two).fails = True
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    assert (link.connections, lane_of(one).dialled) == (1, [])


@simulated
async def test_the_direct_lane_takes_the_place_of_the_stream_once_it_can_be_had(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two", direct=True)
    lane_of(one).fails = True
    link = one.links.to(two.address)
    link.send(request(1))
    await two.got_ids(1)
    lane_of(one).fails = False
    for number in range(2, 80):
        link.send(request(number))
        await asyncio.sleep(0.5)
    assert await two.got_ids(79) == list(range(1, 80))
    assert (link.connections, len(lane_of(one).dialled)) == (2, 1)
    assert (one.lost, two.lost) == ([], [])


@simulated
async def test_a_direct_lane_that_breaks_young_is_left_alone_for_a_while(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two", direct=True)
    lane_of(two).fails = True  # should it redial first
    link = one.links.to(two.address)
    link.send(request(1))
    await asyncio.sleep(1)
    await lane_of(one).dialled[0].close()
    link.send(request(2))
    assert await two.got_ids(2) == [1, 2]
    await asyncio.sleep(20)
    assert len(lane_of(one).dialled) == 1, "it is not tried again so soon"
    await asyncio.sleep(20)
    assert len(lane_of(one).dialled) == 2
    link.send(request(3))
    assert await two.got_ids(3) == [1, 2, 3]


@simulated
async def test_a_silo_without_direct_lane_is_reached_by_the_stream(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two")
    one.links.to(two.address).send(request(1))
    await two.got_ids(1)
    two.links.to(one.address).send(request(2))
    await one.got_ids(1)
    assert lane_of(one).dialled == []


@simulated
async def test_a_client_stays_on_the_stream(world: World) -> None:
    two = await world.silo("two", direct=True)
    client = world.client("client")
    two.answers = True
    link = await client.links.dial_gateway("two:1")
    link.send(request(1))
    await client.got_ids(1)
    assert link.connections == 1


@simulated
async def test_a_direct_lane_where_another_silo_listens_is_not_taken(world: World) -> None:
    one, two, three = [await world.silo(name, direct=True) for name in ("one", "two", "three")]
    assert two.lane is not None
    two.lane.endpoint = "three:2"
    link = one.links.to(two.address)
    link.send(request(1))
    assert await two.got_ids(1) == [1]
    await asyncio.sleep(1)
    assert three.got == []
    assert link.connections == 1


@simulated
async def test_silos_that_dial_each_other_at_once_soon_talk_by_the_direct_lane(world: World) -> None:
    one, two = await world.silo("one", direct=True), await world.silo("two", direct=True)
    links = one.links.to(two.address), two.links.to(one.address)
    for number in range(10):
        links[0].send(request(number))
        links[1].send(request(100 + number))
    await asyncio.sleep(5)
    assert ids(two.got) == list(range(10))
    assert ids(one.got) == list(range(100, 110))
    before = links[0].connections, links[1].connections
    for connection in [*lane_of(one).dialled, *lane_of(two).dialled]:
        await connection.close()
    await asyncio.sleep(2)
    assert links[0].connections > before[0], "what broke was what carried it"
    assert links[1].connections > before[1]
