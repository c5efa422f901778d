"""R-465: many grains in one order. Bounded messages, an outcome for each grain, and nobody waits for the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from silo.grain import Grain, grain, soft_state
from silo.host import Silo
from silo.messaging.limits import KIB, MIB, ORDERS_MAX, LinkLimits
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import with_hint
from tests.cluster.clusters import Cluster
from tests.cluster.stage import Stage, gate, say
from tests.support.wire_tap import WireTap

pytestmark = pytest.mark.real
IN_FLIGHT = 100
GRAINS_MAX, MESSAGE_BYTES_MAX = 1_000, 4 * MIB
"""What R-465 and the limits of payloads allow in one message."""


@grain(kind="many.crate", drain_timeout=2.0)
class Crate(Grain):
    """One of many; its key says how it behaves when it is to be moved."""

    count: int = soft_state(default=0)
    content: bytes = soft_state(default=b"")

    async def add(self) -> int:
        self.count += 1
        return self.count

    async def fill(self, size: int) -> None:
        self.content = bytes(size)

    async def run_on(self) -> None:
        say("runs")
        await gate("end")

    def can_migrate(self) -> bool:
        return self.key != "refuses"

    def on_dehydrate(self, context: DehydrateContext) -> None:
        if self.key == "bad":
            raise RuntimeError("not me")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Its soft state comes by itself."""


async def crates(cluster: Cluster, places: dict[str, Sequence[str]]) -> None:
    """Have crates of these keys activated at these silos, and count to one."""
    for name, keys in places.items():
        silo = cluster.silos[name]
        for start in range(0, len(keys), 500):
            some = [silo.grain(Crate, key) for key in keys[start : start + 500]]
            assert set(await asyncio.gather(*(with_hint(each, name).add() for each in some))) == {1}


def keys(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def at(silo: Silo) -> int:
    return sum(1 for each in silo.runtime.catalog if each.opened_at is not None)


def statuses(outcomes: Iterable[MigrationOutcome]) -> dict[MoveStatus, set[str]]:
    found: dict[MoveStatus, set[str]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.status, set()).add(outcome.grain.key)
    return found


async def test_R465_of_2500_grains_in_one_call_each_has_its_own_outcome(cluster: Cluster, stage: Stage) -> None:
    a, b, c = await cluster.start("a", "b", "c", kinds=(Crate,))
    odd = ["bad", "refuses", "busy"]
    at_a, at_b, there = [*keys("a", 1_600), *odd], keys("b", 880), keys("c", 7)
    await crates(cluster, {"a": at_a, "b": at_b, "c": there})
    client = await cluster.client()
    busy = client.grain(Crate, "busy")
    running = asyncio.create_task(busy.run_on())
    await stage.heard("runs")
    wanted = [*odd, *at_a[:-3], *at_b, *there, *keys("unknown", 10)]
    assert len(wanted) == 2_500
    outcomes = await client.migrate_many([client.grain(Crate, key) for key in wanted], to="c")
    assert [outcome.grain.key for outcome in outcomes] == wanted
    found = statuses(outcomes)
    assert found == {
        MoveStatus.MOVED: {*at_a, *at_b} - {*odd},
        MoveStatus.ABORTED: {"bad", "busy"},
        MoveStatus.REFUSED: {"refuses", *there},
        MoveStatus.NOT_ACTIVE: {*keys("unknown", 10)},
    }
    why = {outcome.grain.key: outcome.why for outcome in outcomes}
    assert "not me" in why["bad"]
    assert "can_migrate said no" in why["refuses"]
    assert "run_on" in why["busy"]
    assert {outcome.source_name for outcome in outcomes if outcome.moved} == {"a", "b"}
    assert (at(a), at(b), at(c)) == (3, 0, 1_600 + 880 + 7)
    stage.gate("end").open()
    await running
    for some in (odd, at_a[:200], at_b[:200]):  # wherever they are, with their state
        assert set(await asyncio.gather(*(client.grain(Crate, key).add() for key in some))) == {2}


@pytest.mark.in_memory
async def test_R465_no_grain_waits_for_the_slowest_of_its_order(cluster: Cluster, stage: Stage) -> None:
    a, b = await cluster.start("a", "b", kinds=(Crate,))
    names = ["busy", *keys("k", 2_000)]
    await crates(cluster, {"a": names})
    client = await cluster.client()
    running = asyncio.create_task(client.grain(Crate, "busy").run_on())
    await stage.heard("runs")
    moving = asyncio.create_task(client.migrate_many([client.grain(Crate, key) for key in names], to="b"))
    await cluster.seen(lambda: at(b) == 2_000 and a.runtime.moves.leaving_count == 1)
    assert not moving.done()
    stage.gate("end").open()
    assert {outcome.status for outcome in await moving} == {MoveStatus.MOVED}
    await running


@pytest.mark.in_memory
async def test_R465_what_goes_together_keeps_the_bounds_by_count_and_bytes_on_the_wire(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Crate,))
    names = keys("k", 2_500)
    await crates(cluster, {"a": names})
    large = 600 * KIB
    for key in names[:3]:
        await a.grain(Crate, key).fill(large)
    for key in names[3:300]:
        await a.grain(Crate, key).fill(8 * KIB)
    client = await cluster.client()
    tap = WireTap(monkeypatch)
    outcomes = await client.migrate_many([client.grain(Crate, key) for key in names], to="b")
    assert all(outcome.moved for outcome in outcomes)
    assert at(b) == 2_500
    limits = LinkLimits()
    assert max(message.size for message in tap.messages) < limits.batch_bytes_max + limits.chunk_bytes + 64 * KIB
    assert limits.batch_bytes_max + limits.chunk_bytes + 64 * KIB < MESSAGE_BYTES_MAX
    assert max(len(message.frames) for message in tap.messages) <= limits.batch_frames_max < GRAINS_MAX
    assert ORDERS_MAX == GRAINS_MAX
    assert max(len(order.calls) for order in tap.orders()) <= GRAINS_MAX
    assert sum(len(order.calls) for order in tap.orders()) > 2_400  # per hop: those few that went alone went at once
    counted = tap.counted()
    assert counted["Orders"] < 250
    assert counted["Request"] < 100
    assert counted["Offer"] == 2_500 - 3  # each grain's own
    assert counted["Chunk"] >= 3 * 3  # those that are large go alone, piece by piece
    carrying = [message for message in tap.messages if any(type(frame).__name__ == "Offer" for frame in message.frames)]
    assert len(carrying) < 2_500 / 10


@pytest.mark.in_memory
async def test_R465_a_silo_that_leaves_moves_its_grains_in_messages_of_many(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("a", "b", "c", kinds=(Crate,))
    names = keys("k", 1_500)
    await crates(cluster, {"a": names})
    tap = WireTap(monkeypatch)
    await cluster.stop("a")
    counted = tap.counted()
    assert counted["Offer"] == counted["Opened"] == 1_500
    said = [len(message.frames) for message in tap.messages if message.source == "a"]
    assert len(said) < sum(said) / 2  # though moves begin one by one, as earlier ones end
    assert max(len(message.frames) for message in tap.messages) <= GRAINS_MAX
    client = await cluster.client()
    assert set(await asyncio.gather(*(client.grain(Crate, key).add() for key in names[:500]))) == {2}


@pytest.mark.in_memory
async def test_R465_an_order_for_one_grain_is_no_envelope(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start("a", "b", kinds=(Crate,))
    await crates(cluster, {"a": ["k"]})
    client = await cluster.client()
    tap = WireTap(monkeypatch)
    assert (await client.migrate(client.grain(Crate, "k"), to="b")).moved
    assert (await client.migrate_many([client.grain(Crate, "k")], to="a"))[0].moved
    assert tap.orders() == []


@pytest.mark.in_memory
async def test_R465_a_silo_that_does_not_know_the_order_for_many_gets_one_for_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("silo.runtime.FEATURES", ())
        await cluster.start("b", kinds=(Crate,))
    await cluster.start("a", "c", kinds=(Crate,))
    at_a, at_b = keys("a", 300), keys("b", 300)
    await crates(cluster, {"a": at_a, "b": at_b})
    tap = WireTap(monkeypatch)
    async with cluster.unopened_client(only=cluster.silos["a"].endpoint) as client:
        outcomes = await client.migrate_many([client.grain(Crate, key) for key in [*at_a, *at_b]], to="c")
    assert all(outcome.moved for outcome in outcomes)
    with_orders = {
        (message.source, message.target)
        for message in tap.messages
        if any(type(frame).__name__ == "Orders" for frame in message.frames)
    }
    assert with_orders
    assert not any("b" in ends for ends in with_orders)
    alone = [frame for message in tap.messages if message.target == "b" for frame in message.frames]
    assert sum(type(frame).__name__ == "Request" for frame in alone) >= 300


async def test_R465_grains_that_have_moved_meanwhile_are_followed(cluster: Cluster) -> None:
    a, _, c, _ = await cluster.start("a", "b", "c", "d", kinds=(Crate,))
    names = keys("k", 300)
    await crates(cluster, {"b": names})
    assert set(await asyncio.gather(*(a.grain(Crate, key).add() for key in names))) == {2}  # a believes in b
    await asyncio.gather(*(c.migrate(c.grain(Crate, key), to="c") for key in names[:150]))
    async with cluster.unopened_client(only=a.endpoint) as client:
        moving = asyncio.create_task(client.migrate_many([client.grain(Crate, key) for key in names], to="d"))
        others = await asyncio.gather(*(c.migrate(c.grain(Crate, key), to="c") for key in names[150:]))
        outcomes = await moving
    assert all(outcome.moved or "already there" in outcome.why for outcome in others)
    assert all(outcome.moved for outcome in outcomes)
    assert {outcome.source_name for outcome in outcomes[:150]} == {"c"}
    assert {outcome.source_name for outcome in outcomes[150:]} <= {"b", "c"}


@pytest.mark.in_memory
async def test_R465_orders_that_meet_a_dead_silo_end_each_by_itself(cluster: Cluster) -> None:
    await cluster.start("a", "b", "c", kinds=(Crate,))
    at_a, at_b = keys("a", 200), keys("b", 200)
    await crates(cluster, {"a": at_a, "b": at_b})
    async with cluster.unopened_client(only=cluster.silos["a"].endpoint) as client:
        moving = asyncio.create_task(client.migrate_many([client.grain(Crate, key) for key in [*at_a, *at_b]], to="c"))
        await cluster.seen(lambda: at(cluster.silos["c"]) > IN_FLIGHT)
        await cluster.kill("b")
        outcomes = await moving
    assert {outcome.status for outcome in outcomes[:200]} == {MoveStatus.MOVED}
    assert {outcome.status for outcome in outcomes[200:]} <= {
        MoveStatus.MOVED,
        MoveStatus.UNKNOWN,
        MoveStatus.LOST,
        MoveStatus.NOT_ACTIVE,
    }
    assert len(outcomes) == 400
