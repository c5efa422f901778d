"""Silos that are restarted, one after the other, alone, or all at once, while clients go on calling."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from silo.client import Client
from silo.directory.errors import SiloError
from silo.embedded import EmbeddedServer, free_port
from silo.reference import with_timeout
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, continue_process, in_ms, stop_process

SILOS = ("silo-1", "silo-2", "silo-3")
OUTAGE_S = 18.6 if LONG else 3.0
"""How long no silo is up."""
ACTIVATED_WITHIN_S = 1.0
QUIET_WITHIN_S = 0.2


async def timed(counter: Counter, timeout_s: float = 8.0) -> float:
    """How long one call took."""
    began = time.monotonic()
    await with_timeout(counter, timeout_s).read()
    return time.monotonic() - began


@dataclass
class Knocker:
    """Calls one grain at a steady pace, whatever becomes of the calls."""

    answered_at: list[float] = field(default_factory=list[float])
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    failed: list[SiloError] = field(default_factory=list[SiloError])

    async def call(self, counter: Counter, timeout_s: float) -> None:
        """Make one call."""
        try:
            await with_timeout(counter, timeout_s).read()
        except SiloError as error:
            self.failed.append(error)
        else:
            self.answered_at.append(time.monotonic())
            self.answered.set()

    async def one_at_a_time(self, counter: Counter, timeout_s: float) -> None:
        """Until cancelled."""
        while True:
            await self.call(counter, timeout_s)
            await asyncio.sleep(0.01)

    async def at_a_rate(self, counter: Counter, timeout_s: float, every_s: float) -> None:
        """Until cancelled; calls are not waited for before the next one is made."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self.call(counter, timeout_s))
                await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run them beside the block, and cancel them at its end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def lose_the_only_silo(stage: Stage, client: Client, listen: str) -> Counter:
    """A grain that has served on the only silo, which then is killed."""
    await stage.start("silo-1", listen=listen)
    counter = client.grain(Counter, "existing")
    await counter.read()
    await stage.kill("silo-1")
    return counter


@pytest.mark.parametrize("same_endpoint", [True, False], ids=["same_endpoint", "new_endpoint"])
async def test_R205_existing_grain_recovers_under_traffic_within_a_second_of_the_silos_return(
    make_stage: Callable[..., Stage], same_endpoint: bool
) -> None:
    """R-205, R-208 and R-212: calls one at a time with 8 s each, and others every 10 ms, all through the outage."""
    listen = f"127.0.0.1:{free_port()}"
    async with make_stage() as stage, stage.client() as client:
        counter = await lose_the_only_silo(stage, client, listen)
        knocker, drummer = Knocker(), Knocker()
        async with in_background(knocker.one_at_a_time(counter, 8.0), drummer.at_a_rate(counter, 8.0, every_s=0.01)):
            await asyncio.sleep(OUTAGE_S)
            assert not knocker.answered_at
            await stage.start("silo-2", listen=listen if same_endpoint else "127.0.0.1:0")
            registered = time.monotonic()
            async with asyncio.timeout(20):
                await asyncio.gather(knocker.answered.wait(), drummer.answered.wait())
        first_s = knocker.answered_at[0] - registered, drummer.answered_at[0] - registered
        print(f"\nanswered {first_s[0] * 1000:.0f} and {first_s[1] * 1000:.0f} ms after the silo was ready")
        assert max(first_s) < ACTIVATED_WITHIN_S


async def test_R206_after_a_quiet_outage_the_first_call_succeeds_within_200_ms(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage() as stage, stage.client() as client:
        counter = await lose_the_only_silo(stage, client, "127.0.0.1:0")
        await asyncio.sleep(OUTAGE_S)
        await stage.start("silo-2")
        took_s = await timed(counter)
        print(f"\nthe first call took {took_s * 1000:.0f} ms")
        assert took_s < QUIET_WITHIN_S


async def test_R207_after_calls_in_the_outage_and_silence_the_grain_has_recovered(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage() as stage, stage.client() as client:
        counter = await lose_the_only_silo(stage, client, "127.0.0.1:0")
        knocker = Knocker()
        async with in_background(knocker.one_at_a_time(counter, 0.5)):
            await asyncio.sleep(OUTAGE_S)
        assert not knocker.answered_at
        assert len(knocker.failed) >= 2
        await stage.start("silo-2")
        took_s = await timed(counter)
        print(f"\nthe first call took {took_s * 1000:.0f} ms")
        assert took_s < QUIET_WITHIN_S


async def test_R209_a_fresh_key_is_never_more_available_than_an_existing_one(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client() as client:
        existing = await lose_the_only_silo(stage, client, "127.0.0.1:0")
        await asyncio.sleep(OUTAGE_S / 2)
        calls = [asyncio.create_task(timed(existing)), asyncio.create_task(timed(client.grain(Counter, "fresh")))]
        await stage.start("silo-2")
        ready = time.monotonic()
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)
        assert time.monotonic() - ready < ACTIVATED_WITHIN_S
        took_s, fresh_s = await asyncio.gather(timed(existing), timed(client.grain(Counter, "fresher")))
        assert max(took_s, fresh_s) < QUIET_WITHIN_S


async def test_R215_calls_while_no_silo_is_up_end_within_their_own_deadline_and_say_why(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage() as stage, stage.client() as client:
        counter = await lose_the_only_silo(stage, client, "127.0.0.1:0")
        await asyncio.sleep(1.0)
        began = time.monotonic()
        with pytest.raises(SiloError, match=rf"no silo of cluster '{stage.cluster_name}' could be reached: .+"):
            await with_timeout(counter, 1.0).read()
        assert 0.9 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("silos", [1, 2])
async def test_a_silo_is_restarted_while_a_client_keeps_calling(make_stage: Callable[..., Stage], silos: int) -> None:
    """A planned restart of one of two silos loses nothing; of the only one, calls wait for its return."""
    names = SILOS[:silos]
    async with make_stage() as stage:
        await stage.start(*names)
        await stage.caller("caller-1", grains=50, pipelined=2, rate=500)
        if silos == 1:
            row = await stage.row("silo-1")
            stage.witness(What.FAULT, because="the only silo stops")
            stage.witness(What.SILO_LOST, silo=str(row.silo), because="nobody takes over what it had")
        assert await stage.cluster["silo-1"].stop() == 0
        await asyncio.sleep(0.5)
        await stage.start("silo-1")
        restarted = stage.now()
        await asyncio.sleep(1.0)
        stage.healed()
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept(settle_s=1.0)
        answered = [event for event in events if event.what is What.CALL_ENDED and event.outcome == Ended.VALUE]
        assert any(event.at > restarted for event in answered)
        assert ended.total() == ended[Ended.VALUE], f"calls were lost: {ended}"


async def test_a_client_that_was_there_before_any_silo_goes_on_when_one_comes(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client() as client:
        early = asyncio.create_task(timed(client.grain(Counter, "early"), 30.0))
        caller = await stage.caller("caller-1", grains=20, pipelined=2, wait=False)
        await asyncio.sleep(1.5)
        assert not early.done()
        await stage.start("silo-1")
        ready = time.monotonic()
        async with asyncio.timeout(20):
            await asyncio.gather(early, caller.begun())
        print(f"\nall were answered {(time.monotonic() - ready) * 1000:.0f} ms after the silo was ready")
        assert time.monotonic() - ready < ACTIVATED_WITHIN_S
        ended = await stage.stop_callers()
        stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE]


async def test_a_rolling_restart_under_load_loses_nothing(make_stage: Callable[..., Stage]) -> None:
    """SIGTERM drains: exit code 0, every call answered, every count kept."""
    grains = 300 if LONG else 120
    async with make_stage() as stage:
        await stage.start(*SILOS)
        for name in ("caller-1", "caller-2"):
            await stage.caller(name, grains=grains, pipelined=2, rate=0 if LONG else 400)
        async with stage.client() as client:
            await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(grains)))
        codes: list[int] = []
        for name in SILOS:
            codes.append(await stage.cluster[name].stop())
            await stage.start(name)
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        print(f"\n{ended}")
        assert codes == [0, 0, 0]
        assert ended.total() == ended[Ended.VALUE]
        assert sum(event.what is What.OPENED and event.because == "call" for event in events) == grains


async def test_a_client_of_listed_gateways_survives_the_loss_of_its_gateway(make_stage: Callable[..., Stage]) -> None:
    """It never asks Redis, and learns of the other gateways from the one that it was told of."""
    async with make_stage() as stage:
        await stage.start("silo-1", "silo-2")
        gateway = stage.cluster["silo-1"].endpoint
        async with Client.connect(cluster=stage.cluster_name, gateways=[gateway]) as client:
            counters = [client.grain(Counter, str(key)) for key in range(20)]
            await asyncio.gather(*(counter.read() for counter in counters))
            assert len(client.endpoints) == 2
            await stage.kill("silo-1")
            times = await asyncio.gather(*(timed(counter) for counter in counters), return_exceptions=True)
            lost = [each for each in times if isinstance(each, BaseException)]
            again = await asyncio.gather(*(timed(counter) for counter in counters))
            print(f"\n{len(lost)} calls ended with an error at the kill; after it: {in_ms(again)}")
            assert max(again) < 2.0


async def test_redis_stopped_for_two_seconds_stops_no_existing_activation(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer
) -> None:
    grains = 60
    async with make_stage() as stage:
        await stage.start(*SILOS)
        await stage.caller("caller-1", grains=grains, pipelined=2, rate=600)
        async with stage.client() as client:
            await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(grains)))
        stopped = stage.now()
        stop_process(own_redis_server.pid)
        await asyncio.sleep(2.0)
        continued = stage.now()
        continue_process(own_redis_server.pid)
        await asyncio.sleep(1.0)
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        sent = {event.call: event.at for event in events if event.what is What.CALL_SENT}
        during = [
            event.at - sent[event.call]
            for event in events
            if event.what is What.CALL_ENDED and stopped < sent[event.call] < continued
        ]
        print(f"\ncalls made while Redis was stopped: {in_ms(during)}")
        assert ended.total() == ended[Ended.VALUE]
        assert len(during) > 600
        assert max(during) < 1.0


async def test_redis_restarted_with_its_data_leaves_the_cluster_as_it_was(
    make_stage: Callable[..., Stage], own_redis_server: EmbeddedServer
) -> None:
    grains = 60
    async with make_stage() as stage:
        await stage.start(*SILOS)
        await stage.caller("caller-1", grains=grains, pipelined=2, rate=400)
        before = await stage.view()
        async with stage.client(role="admin") as client:
            await asyncio.gather(*(client.grain(Counter, str(key)).read() for key in range(grains)))
            await asyncio.to_thread(own_redis_server.restart)
            fresh = client.grain(Counter, "fresh")
            assert await fresh.read() == 0
            moves = [await client.migrate(fresh, to=name) for name in SILOS]
        await asyncio.sleep(1.0)
        ended = await stage.stop_callers()
        events = stage.assert_promises_kept()
        assert ended.total() == ended[Ended.VALUE]
        assert sum(outcome.moved for outcome in moves) == len(SILOS) - 1 or all(outcome.moved for outcome in moves)
        assert {row.silo for row in (await stage.view()).active()} == {row.silo for row in before.active()}
        assert sum(event.what is What.OPENED and event.because == "call" for event in events) == grains + 1
