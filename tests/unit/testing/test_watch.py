"""The watch tells of any grain what the checker needs: who may run beside whom, who ordered what, and no more."""

from __future__ import annotations

import asyncio

import pytest

from silo.activation.turns import TurnQueue
from silo.grain import Grain, always_interleave, grain, one_way, read_only
from silo.routing.call import Call
from silo.testing import Cluster, PromiseBroken, run_simulated
from silo.testing.witness import Ended, Event, What


@grain(kind="desk")
class Desk(Grain):
    async def work(self) -> None:
        await asyncio.sleep(0.1)

    @read_only
    async def read(self) -> None:
        await asyncio.sleep(0.1)

    @always_interleave
    async def peek(self) -> None:
        await asyncio.sleep(0.01)

    @one_way
    async def note(self) -> None:
        await asyncio.sleep(0.1)


@grain(kind="reentrant_desk", reentrant=True)
class ReentrantDesk(Desk):
    """All of its calls may run beside each other."""


@grain(kind="chained_desk", reentrant="call_chain")
class ChainedDesk(Desk):
    async def ask_back(self) -> None:
        await self.grain(Asker, self.key).ask(self.key)


@grain(kind="asker")
class Asker(Grain):
    async def ask(self, key: str) -> None:
        await self.grain(ChainedDesk, key).work()


def turns(events: list[Event], method: str) -> list[tuple[bool, bool]]:
    started = [event for event in events if event.what is What.TURN_STARTED and event.method == method]
    return [(event.interleaves, event.anywhere) for event in started]


@pytest.mark.parametrize("kind", [Desk, ReentrantDesk, ChainedDesk])
def test_calls_of_all_sorts_at_once_break_no_promise(kind: type[Desk]) -> None:
    async def scenario(cluster: Cluster) -> None:
        desk = cluster.client.grain(kind, "d")
        for _ in range(3):
            calls = [desk.work(), desk.read(), desk.peek(), desk.read(), desk.note(), desk.work()]
            await asyncio.gather(*calls, cluster.client.migrate(desk))

    events = list(run_simulated(scenario, kinds=[kind], seeds=3).events)
    everywhere = kind is ReentrantDesk
    assert set(turns(events, "work")) == {(everywhere, everywhere)}
    assert set(turns(events, "read")) == {(True, everywhere)}
    assert set(turns(events, "peek")) == {(True, True)}
    one_way = [event for event in events if event.what is What.CALL_ENDED and event.outcome is Ended.SENT]
    assert len(one_way) == 3


def test_a_call_that_comes_back_to_the_turn_that_waits_for_it_overlaps_with_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client.grain(ChainedDesk, "d").ask_back()

    events = list(run_simulated(scenario, kinds=[ChainedDesk, Asker]).events)
    assert turns(events, "work") == [(True, True)]
    callers = [event.caller for event in events if event.what is What.CALL_SENT]
    assert callers[1:] == ["chained_desk/d", "asker/d"]


def test_orders_to_the_runtime_are_no_calls_of_a_grain() -> None:
    async def scenario(cluster: Cluster) -> None:
        desk = cluster.client.grain(Desk, "d")
        await desk.work()
        await cluster.migrate(desk)

    events = run_simulated(scenario, kinds=[Desk]).events
    assert [event.method for event in events if event.what is What.CALL_SENT] == ["work"]


def test_turns_that_overlap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(_queue: TurnQueue[Call], _turn: Call) -> bool:
        return True

    async def scenario(cluster: Cluster) -> None:
        desk = cluster.client.grain(Desk, "d")
        await asyncio.gather(desk.work(), desk.work())

    run_simulated(scenario, kinds=[Desk])
    monkeypatch.setattr(TurnQueue, "_fits", fits)
    with pytest.raises(PromiseBroken, match="one turn at a time: desk/d"):
        run_simulated(scenario, kinds=[Desk])
