"""Management over gRPC: what a cluster says of itself, draining by order, health and reflection."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import SecretStr

from silo import Client, Grain, NoGateway, NotExecuted, PermissionRefused, Silo, SiloSettings, grain, with_hint
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainKindUnknown, HandshakeRefused, MembershipUnavailable, SiloUnavailable
from silo.directory.membership import SiloStatus
from silo.grain_records import DeactivationReport, DeactivationStatus, GrainReport, GrainState
from silo.management_service import ManagementService
from silo.management_values import (
    ClusterStatus,
    MemberReport,
    MemberStatus,
    SiloReport,
    merged,
    spread_of,
    summary,
)
from silo.management_wire import report_from_wire, report_to_wire
from silo.messaging.greeting import Credentials
from silo.messaging.permissions import Role
from silo.migration.outcome import MoveStatus
from silo.reference import grain_id
from tests.support.waiting import until

TOKEN = "the token of the cluster"
Start = Callable[[str], Awaitable[Silo]]


@grain(kind="managed")
class Room(Grain):
    entered = asyncio.Event()
    leave = asyncio.Event()

    async def enter(self) -> str:
        return self.silo

    async def stay(self) -> None:
        Room.entered.set()
        await Room.leave.wait()


@pytest.fixture
async def start(redis_url: str, cluster_name: str) -> AsyncIterator[Start]:
    """Starts silos of a cluster with a token."""
    Room.entered, Room.leave = asyncio.Event(), asyncio.Event()
    silos: list[Silo] = []

    async def one(name: str) -> Silo:
        settings = SiloSettings(
            cluster=cluster_name,
            redis=redis_url,
            name=name,
            bootstrap=True,
            cluster_token=SecretStr(TOKEN),
            app_version="1.8",
            meta={"zone": "a"},
        )
        silo = Silo(Room, settings=settings)
        await silo.start()
        silos.append(silo)
        return silo

    yield one
    Room.leave.set()
    for silo in silos:
        await silo.drain_and_stop()


@pytest.fixture
def connect(redis_url: str, cluster_name: str) -> Callable[..., Client]:
    def one(token: str | None = TOKEN, **options: Any) -> Client:
        return Client.connect(redis_url, cluster=cluster_name, token=token, **options)

    return one


async def health_of(endpoint: str, service: str = "") -> str:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return name


async def test_R302_the_status_tells_of_every_silo_what_it_hosts_and_how_even_that_is(
    start: Start, connect: Callable[..., Client]
) -> None:
    silos = [await start("one"), await start("two")]
    async with connect() as client:
        await asyncio.gather(*(client.grain(Room, f"room-{number}").enter() for number in range(10)))
        status = await client.management.status()
    assert [silo.name for silo in status.silos] == ["one", "two"]
    hosted = [len(silo.activations()) for silo in silos]
    assert [silo.activations for silo in status.silos] == hosted
    assert [silo.activations_by_kind.get("managed", 0) for silo in status.silos] == hosted
    assert status.activations == 10
    assert status.answered == 2
    assert status.spread == pytest.approx(max(hosted) / 5)
    first = status.silos[0]
    assert (first.state, first.app_version, first.meta, first.kinds) == ("active", "1.8", {"zone": "a"}, ("managed",))
    assert first.address == silos[0].address
    assert (first.moves_out, first.moves_in) == (0, 0)
    assert first.loop_lag_s is not None


async def test_open_calls_are_counted_where_they_wait(start: Start, connect: Callable[..., Client]) -> None:
    await start("one")
    async with connect() as client:
        staying = asyncio.create_task(client.grain(Room, "lobby").stay())
        await Room.entered.wait()
        assert (await client.management.status()).silos[0].open_calls == 1
        Room.leave.set()
        await staying


async def test_a_silo_is_drained_by_name_and_its_grains_go_elsewhere(
    start: Start, connect: Callable[..., Client]
) -> None:
    one, two = await start("one"), await start("two")
    async with connect() as client:
        await asyncio.gather(*(client.grain(Room, f"room-{number}").enter() for number in range(10)))
        await client.management.drain("one")
        await one.wait_stopped()
        assert len(two.activations()) == 10
        assert [silo.name for silo in (await client.management.status()).silos] == ["two"]
        assert await client.grain(Room, "room-0").enter() == "two"


async def test_a_silo_that_drains_says_so_and_is_not_serving(start: Start, connect: Callable[..., Client]) -> None:
    one = await start("one")
    endpoint = one.endpoint
    two = await start("two")
    async with connect() as client:
        rooms = (client.grain(Room, f"room-{number}") for number in range(100))
        room = next(room for room in [room async for room in on(rooms, "one")])
        staying = asyncio.create_task(room.stay())
        await Room.entered.wait()
        assert {await health_of(endpoint), await health_of(endpoint, "silo.wire.v1.Link")} == {"SERVING"}
        await client.management.drain(str(one.address))
        await client.management.drain("one")  # asked again, it goes on as it was
        assert await health_of(endpoint) == "NOT_SERVING"
        await until(lambda: any(row.status is SiloStatus.LEAVING for row in two.view.living()))
        status = await client.management.status()
        assert {silo.name: silo.state for silo in status.silos} == {"one": "leaving", "two": "active"}
        Room.leave.set()
        await staying
        await one.wait_stopped()


async def test_R478_a_silo_is_cordoned_by_name_as_the_status_shows_and_uncordoned(
    start: Start, connect: Callable[..., Client]
) -> None:
    one = await start("one")
    await start("two")
    async with connect() as client:
        assert await client.management.cordon("one") == one.address
        assert await client.management.cordon(str(one.address)) == one.address  # asked again, it goes on as it was
        await asyncio.gather(*(client.grain(Room, f"room-{number}").enter() for number in range(10)))
        status = await client.management.status()
        assert {silo.name: (silo.state, silo.cordoned, silo.activations) for silo in status.silos} == {
            "one": ("active", True, 0),
            "two": ("active", False, 10),
        }
        shown = cast("list[dict[str, object]]", summary(status)["members"])
        assert [silo["state"] for silo in shown] == ["active, cordoned", "active"]
        assert await client.management.uncordon("one") == one.address
        status = await client.management.status()
        assert [silo.cordoned for silo in status.silos] == [False, False]


async def test_R213_R217_a_grain_is_looked_at_and_deactivated_by_its_reference(
    start: Start, connect: Callable[..., Client]
) -> None:
    one = await start("one")
    await start("two")
    async with connect() as client:
        room = with_hint(client.grain(Room, "lobby"), "one")
        await room.enter()
        record = await client.management.grain(room)
        assert (record.state, record.silo, record.unanswered) == (GrainState.ACTIVE, "one", ())
        assert record.entry is not None
        assert record.entry.silo == one.address
        staying = asyncio.create_task(room.stay())
        await Room.entered.wait()
        outcome = await client.management.deactivate(room, timeout_s=0.1)
        assert (outcome.status, outcome.why) == (DeactivationStatus.UNDER_WAY, "its running calls end first: stay")
        ending = asyncio.create_task(client.management.deactivate(grain_id(room)))
        Room.leave.set()
        assert (await ending).status in (DeactivationStatus.DEACTIVATED, DeactivationStatus.NOT_ACTIVE)
        await staying
        assert (await client.management.grain(room)).state is GrainState.NOT_ACTIVE
        with pytest.raises(TypeError, match="a reference to a grain is wanted"):
            await client.management.grain("managed/lobby")


async def test_what_is_no_grain_is_refused_by_the_silo() -> None:
    service = ManagementService(Unmanaged(), None, random.Random(1))
    await service.announce(serving=True)
    async with grpc_server(service) as endpoint, grpc.aio.insecure_channel(endpoint) as channel:
        untyped: Any = channel
        for method in ("Grain", "Deactivate"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await untyped.unary_unary(f"/silo.wire.v1.Management/{method}")(b"", timeout=5)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_of_two_silos_of_one_name_the_one_that_joined_last_is_meant(
    start: Start, connect: Callable[..., Client]
) -> None:
    await start("one")
    again = await start("one")
    async with connect() as client:
        assert await client.management.cordon("one") == again.address


async def test_a_cordon_that_cannot_be_written_says_so(
    start: Start, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start("one")

    async def away(_: bool) -> None:
        raise MembershipUnavailable("the membership table could not be asked")

    monkeypatch.setattr(one.runtime.membership, "cordon", away)
    async with connect() as client:
        with pytest.raises(SiloUnavailable, match="could not be asked"):
            await client.management.cordon("one")


async def on(rooms: Any, silo: str) -> AsyncIterator[Any]:
    """Those of the rooms that land on this silo."""
    for room in rooms:
        if await room.enter() == silo:
            yield room
            return


async def test_who_is_not_there_cannot_be_drained(start: Start, connect: Callable[..., Client]) -> None:
    await start("one")
    async with connect() as client:
        with pytest.raises(NotExecuted, match=r"no living silo is called three \(known: one\)"):
            await client.management.drain("three")
        with pytest.raises(NotExecuted, match=r"no living silo is called three \(known: one\)"):
            await client.management.cordon("three")


async def test_a_client_without_the_role_is_refused_and_an_admin_is_not(
    start: Start, connect: Callable[..., Client]
) -> None:
    await start("one")
    cluster = Credentials(TOKEN)
    async with connect(cluster.derive(Role.CLIENT)) as client:
        with pytest.raises(PermissionRefused, match="takes the role admin"):
            await client.management.status()
    async with connect(cluster.derive(Role.ADMIN), role="admin") as admin:
        assert (await admin.management.status()).answered == 1


async def test_a_token_of_a_role_makes_no_silo_and_says_what_does(redis_url: str, cluster_name: str) -> None:
    for role in (Role.CLIENT, Role.ADMIN):
        token = SecretStr(Credentials(TOKEN).derive(role))
        stranger = Silo(Room, settings=SiloSettings(cluster=cluster_name, redis=redis_url, cluster_token=token))
        with pytest.raises(HandshakeRefused, match=f"role {role} does not prove the role silo: give the cluster token"):
            await stranger.start()


async def test_a_kind_that_no_silo_hosts_is_named_whatever_is_asked_of_its_grains(
    start: Start, connect: Callable[..., Client]
) -> None:
    await start("one")
    mistyped = GrainId("mannaged", "lobby")
    why = "no silo hosts grains of kind 'mannaged' (hosted: managed); did you mean 'managed'?"
    async with connect(role="admin") as client:
        with pytest.raises(GrainKindUnknown, match=re.escape(why)):
            await client.management.grain(mistyped)
        order = await client.management.deactivate(mistyped)
        assert (order.status, order.why) == (DeactivationStatus.NOT_ACTIVE, why)
        assert str(order) == f"mannaged/lobby was not active: {why}"
        (move,) = await client.migrate_many([mistyped])
        assert (move.status, move.why) == (MoveStatus.NOT_ACTIVE, why)


def test_the_status_has_no_column_in_which_no_silo_says_anything() -> None:
    def silo(name: str, moves_out: int, app_version: str = "") -> MemberStatus:
        address = SiloAddress("127.0.0.1:7000", 7)
        figures = (5, 0.0, 0, moves_out, 0, app_version)
        return MemberStatus(name, address, "active", *figures, {}, True, True, ("managed",), {})

    def columns(*silos: MemberStatus) -> set[str]:
        status = ClusterStatus("prod", 1, "one", len(silos), 5, 1.0, silos)
        members = cast("list[dict[str, object]]", summary(status)["members"])
        assert len({tuple(member) for member in members}) == 1
        return set(members[0])

    assert columns(silo("one", 0), silo("two", 0)).isdisjoint({"moves out/in", "version"})
    assert columns(silo("one", 0), silo("two", 3, "1.8")) >= {"moves out/in", "version"}


async def test_whoever_brings_no_proof_of_the_token_is_refused_by_every_method(start: Start) -> None:
    silo = await start("one")
    async with grpc.aio.insecure_channel(silo.endpoint) as channel:
        untyped: Any = channel
        for method in ("Status", "Drain", "Cordon", "Grain", "Deactivate"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await untyped.unary_unary(f"/silo.wire.v1.Management/{method}")(b"", timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert silo.view.row(silo.address) is not None


async def test_without_a_gateway_management_says_so(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.management.ASK_TIMEOUT_S", 0.1)
    async with connect() as client:
        with pytest.raises(NoGateway):
            await client.management.status()


async def test_reflection_lists_the_services_and_describes_management(start: Start) -> None:
    silo = await start("one")

    question: Any = reflection_pb2.ServerReflectionRequest

    async def questions() -> AsyncIterator[Any]:
        yield question(list_services="")
        yield question(file_containing_symbol="silo.wire.v1.Management")

    async with grpc.aio.insecure_channel(silo.endpoint) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", channel))
        listed, described = [answer async for answer in stub.ServerReflectionInfo(questions(), timeout=5)]
    services = {service.name for service in listed.list_services_response.service}
    assert services >= {"silo.wire.v1.Link", "silo.wire.v1.Management", "grpc.health.v1.Health"}
    assert b"management.proto" in described.file_descriptor_response.file_descriptor_proto[0]


class Unmanaged:
    """A silo that is not asked anything."""

    me = SiloAddress("127.0.0.1:7000", 7)

    async def report(self) -> SiloReport:
        raise AssertionError("not to be asked")

    def answers_to(self, silo: str) -> bool:
        raise AssertionError("not to be asked")

    def begin_drain(self) -> None:
        raise AssertionError("not to be asked")

    async def cordon(self, cordoned: bool) -> None:
        raise AssertionError("not to be asked")

    async def grain_report(self, grain: GrainId, *, look_up: bool) -> GrainReport:
        raise AssertionError("not to be asked")

    async def deactivate(self, grain: GrainId, within_s: float) -> DeactivationReport:
        raise AssertionError("not to be asked")


@asynccontextmanager
async def joining_silo() -> AsyncGenerator[str]:
    service = ManagementService(Unmanaged(), None, random.Random(1))
    await service.announce(serving=False)
    async with grpc_server(service) as endpoint:
        yield endpoint


@asynccontextmanager
async def grpc_server(service: ManagementService) -> AsyncGenerator[str]:
    untyped: Any = grpc.aio  # its stubs know no types of messages
    server = untyped.server()
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_silo_that_still_joins_is_not_serving_and_answers_nothing() -> None:
    async with joining_silo() as endpoint:
        assert await health_of(endpoint) == "NOT_SERVING"
        async with grpc.aio.insecure_channel(endpoint) as channel:
            untyped: Any = channel
            with pytest.raises(grpc.aio.AioRpcError, match="still joining"):
                await untyped.unary_unary("/silo.wire.v1.Management/Status")(b"", timeout=5)


def member(name: str, number: int, activations: int | None, state: str = "active") -> MemberReport:
    return MemberReport(
        name,
        SiloAddress(f"host-{number}:7000", number),
        state,
        activations,
        0.001,
        "",
        ("room",),
        {"zone": "a"},
        in_flight=activations,
        in_flight_max=5,
        activations_max=None if activations is None else 5,
    )


def report(own: int, *members: MemberReport, by_kind: dict[str, int]) -> SiloReport:
    return SiloReport("prod", 9, members[own].address, by_kind, 4, 1, 2, members)


def test_a_report_goes_over_the_wire_whole() -> None:
    sent = report(0, member("a", 1, 3), member("b", 2, None, "joining"), by_kind={"room": 3})
    assert report_from_wire(report_to_wire(sent)) == sent


def test_a_silo_that_does_not_answer_is_shown_by_its_last_report() -> None:
    members = member("a", 1, 3), member("b", 2, 5), member("c", 3, None, "joining")
    status = merged(report(0, *members, by_kind={"room": 2, "cart": 2}), [])
    assert [(silo.activations, silo.answered, silo.open_calls) for silo in status.silos] == [
        (4, True, 4),
        (5, False, None),
        (None, False, None),
    ]
    assert (status.asked, status.answered, status.activations) == ("a", 1, 9)
    assert status.spread == pytest.approx(5 * 2 / 9, abs=0.001)
    shown = summary(status)
    assert shown["silos answered"] == "1 of 3"
    rows = [(row["activations"], row["in flight"]) for row in cast("list[dict[str, object]]", shown["members"])]
    assert rows == [("4 of 5", "3 of 5"), ("5 of 5, full", "5 of 5, full"), (None, None)]


@pytest.mark.parametrize(
    ("counts", "spread"), [([], 1.0), ([0, 0], 1.0), ([3, 3, 3], 1.0), ([9, 0, 0], 3.0), ([4, 2], 4 / 3)]
)
def test_R302_spread_is_the_largest_over_the_mean(counts: list[int], spread: float) -> None:
    assert spread_of(counts) == pytest.approx(spread)


@pytest.mark.process
async def test_a_process_that_an_admin_drains_ends_well(redis_url: str, cluster_name: str, tmp_path: Path) -> None:
    (tmp_path / "drained_application.py").write_text("from silo import Grain, grain\n@grain\nclass Room(Grain): ...\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])}
    command = ["run", "drained_application", "--cluster", cluster_name, "--redis", redis_url, "--name", "one"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "silo", *command, stdout=asyncio.subprocess.PIPE, env=environment, cwd=tmp_path
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            await process.stdout.readline()
            async with Client.connect(redis_url, cluster=cluster_name) as client:
                await client.management.drain("one")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
