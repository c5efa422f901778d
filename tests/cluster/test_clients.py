"""Clients: what they say without a cluster or when closed, and how they get over the loss of a gateway."""

from __future__ import annotations

import asyncio
from zlib import crc32

import pytest

from silo import gateway_choice
from silo.client import Client
from silo.directory.errors import Closed, InvalidSettings, NoGateway, NotExecuted, OutcomeUnknown
from silo.migration.outcome import MoveStatus
from silo.reference import with_hint, with_timeout
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger
from tests.cluster.stage import Stage
from tests.support.wire_tap import WireTap

pytestmark = pytest.mark.real


async def test_a_client_that_finds_no_cluster_says_so_within_the_deadline_of_the_call(cluster: Cluster) -> None:
    client = cluster.unopened_client(gateways=["nowhere:7000"])
    async with client:
        with pytest.raises(NoGateway, match="could be reached") as raised:
            await with_timeout(client.grain(Ledger, "k"), 0.4).read()
    assert isinstance(raised.value, NotExecuted)
    assert isinstance(raised.value, ConnectionError)
    assert client.cluster in str(raised.value)


async def test_a_client_may_be_started_before_any_silo_is(cluster: Cluster) -> None:
    client = cluster.unopened_client(gateways=["a:7000"])
    async with client:
        calling = asyncio.create_task(client.grain(Ledger, "k").write("early"))
        await asyncio.sleep(0.05)
        await cluster.start("a", kinds=(Ledger,))
        assert await calling == 1


async def test_a_client_that_was_not_opened_and_one_that_is_closed_say_so(cluster: Cluster) -> None:
    await cluster.start("a", kinds=(Ledger,))
    client = cluster.unopened_client()
    with pytest.raises(Closed, match="not opened"):
        await client.grain(Ledger, "k").read()
    await client.open()
    assert await client.grain(Ledger, "k").read() == []
    await client.close()
    with pytest.raises(Closed, match="closed"):
        await client.grain(Ledger, "k").read()
    with pytest.raises(Closed, match="closed"):
        await client.migrate(client.grain(Ledger, "k"), to="a")
    await client.close()  # once more does no harm


async def test_calls_that_are_out_when_the_client_is_closed_end_and_say_so(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", kinds=(Ledger,))
    client = await cluster.client()
    calling = asyncio.create_task(client.grain(Ledger, "k").write_at("go", "late"))
    await stage.heard("started late")
    await client.close()
    with pytest.raises(OutcomeUnknown, match="client was closed"):
        await calling


async def test_a_client_gets_over_the_orderly_loss_of_any_gateway_without_losing_a_call(cluster: Cluster) -> None:
    await cluster.start("a", "b", "c", kinds=(Ledger,))
    client = await cluster.client()
    ledgers = [client.grain(Ledger, f"k{number}") for number in range(12)]
    counts = dict.fromkeys(ledgers, 0)
    goes_on = True

    async def call(ledger: Ledger) -> None:
        while goes_on:
            counts[ledger] += 1
            assert await ledger.write("x") == counts[ledger]

    callers = [asyncio.create_task(call(ledger)) for ledger in ledgers]
    await cluster.seen(lambda: min(counts.values()) > 2)
    await cluster.stop("a")
    await cluster.start("d", kinds=(Ledger,))
    await cluster.stop("b")
    before = dict(counts)
    await cluster.seen(lambda: all(counts[ledger] > before[ledger] for ledger in ledgers))
    goes_on = False
    await asyncio.gather(*callers)


async def test_a_call_that_lets_another_one_end_is_not_held_back_by_a_gateway_that_has_joined(
    cluster: Cluster, stage: Stage
) -> None:
    """Which gateway a key goes by changes when one joins. Calls that are out keep their lane where it is."""
    await cluster.start("a", kinds=(Ledger,))
    client = await cluster.client()
    ledgers = [with_hint(client.grain(Ledger, f"k{number}"), "a") for number in range(8)]
    running = [asyncio.create_task(ledger.write_at("go", f"{ledger}")) for ledger in ledgers]
    for ledger in ledgers:
        await stage.heard(f"started {ledger}")
    await cluster.start("b", "c", kinds=(Ledger,))
    await cluster.seen(lambda: len(client.endpoints) == 3)
    await client.reachable()
    queued = [asyncio.create_task(ledger.write("after")) for ledger in ledgers]
    for ledger in ledgers:
        await cluster.queued(ledger, 1)
    stage.gate("go").open()
    await asyncio.gather(*running, *queued)


@pytest.mark.in_memory
async def test_a_client_calls_a_grain_at_the_silo_that_serves_it_once_an_answer_has_told_which(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = ("a", "b", "c")
    await cluster.start(*silos, kinds=(Ledger,))
    client = await cluster.client()
    await cluster.seen(lambda: len(client.endpoints) == 3)
    ledgers = [with_hint(client.grain(Ledger, f"k{number}"), silos[number % 3]) for number in range(12)]
    for ledger in ledgers:
        await ledger.write("first")
    tap = WireTap(monkeypatch)
    for ledger in ledgers:
        await ledger.write("second")
    assert tap.counted()["Request"] == len(ledgers)  # none of them went on from one silo to another

    assert (await client.migrate(ledgers[0], to="b")).moved
    await ledgers[0].write("goes on from where it was")
    tap.messages.clear()
    assert await ledgers[0].write("goes where it is") == 4
    assert tap.counted()["Request"] == 1


@pytest.mark.in_memory
async def test_a_silo_that_is_no_gateway_is_not_called_by_clients_though_it_serves_the_grain(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("a", kinds=(Ledger,))
    await cluster.start("b", kinds=(Ledger,), gateway=False)
    client = await cluster.client()
    ledger = with_hint(client.grain(Ledger, "k"), "b")
    await ledger.write("first")
    tap = WireTap(monkeypatch)
    assert await ledger.write("second") == 2
    assert tap.counted()["Request"] == 2
    assert len(client.endpoints) == 1


@pytest.mark.in_memory
async def test_a_client_remembers_of_a_bounded_number_of_grains_where_they_are(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_choice, "GRAINS_MAX", 2)
    await cluster.start("a", "b", "c", kinds=(Ledger,))
    client = await cluster.client()
    await cluster.seen(lambda: len(client.endpoints) == 3)
    ledgers = [with_hint(client.grain(Ledger, f"k{number}"), "b") for number in range(9)]
    for ledger in ledgers:
        await ledger.write("first")
    tap = WireTap(monkeypatch)
    for ledger in reversed(ledgers):
        assert await ledger.write("second") == 2
    at_gateways = sum(crc32(f"k{number}".encode()) % 3 != 1 for number in range(9))
    assert tap.counted()["Request"] == len(ledgers) + at_gateways - 2


async def test_clients_of_gateway_addresses_alone_learn_of_the_other_gateways(cluster: Cluster) -> None:
    a, _, _ = await cluster.start("a", "b", "c", kinds=(Ledger,))
    client = cluster.unopened_client(only=a.endpoint)
    async with client:
        assert await client.grain(Ledger, "k").write("x") == 1
        await cluster.seen(lambda: len(client.endpoints) == 3)


async def test_a_client_orders_moves_though_all_that_it_began_with_have_left(cluster: Cluster) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Ledger,))
    client = cluster.unopened_client(only=a.endpoint)
    async with client:
        ledger = client.grain(Ledger, "k")
        await ledger.write("x")
        await cluster.seen(lambda: len(client.endpoints) == 2)
        await cluster.stop("a")
        await cluster.start("c", kinds=(Ledger,))
        await ledger.write("y")
        async with asyncio.timeout(10.0):
            moved = [await client.migrate(ledger, to=to) for to in ("b", "c")]
    assert moved[1].status is MoveStatus.MOVED, moved


@pytest.mark.parametrize("gateway", ["somewhere", "host:port", ":7000", ""])
def test_a_gateway_that_is_no_endpoint_is_refused_before_anybody_knocks(gateway: str) -> None:
    with pytest.raises(InvalidSettings, match="of the form host:port"):
        Client.connect(gateways=["127.0.0.1:7000", gateway])
