"""What can go wrong between processes that speak gRPC, as scenarios of that kind tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from silo.client import Client
from silo.directory.errors import AnswerTooLarge, NotExecuted, PayloadTooLarge
from silo.grain import Grain, grain
from silo.host import Silo
from silo.messaging.limits import MIB, LinkLimits
from silo.reference import with_hint
from silo.serialization.exceptions import RemoteError
from tests.cluster.clusters import Cluster
from tests.cluster.stage import Stage, gate, say

pytestmark = pytest.mark.real
SOON_S = 1.0


@grain(kind="canceller")
class Canceller(Grain):
    """Meets cancellations that are its own affair."""

    async def fail(self, how: str) -> str:
        match how:
            case "raises it":
                raise asyncio.CancelledError
            case "awaits what somebody cancelled":
                task = asyncio.create_task(asyncio.sleep(60.0))
                asyncio.get_running_loop().call_soon(task.cancel)
                await task
            case "cancels itself":
                task_of_turn = asyncio.current_task()
                assert task_of_turn is not None
                task_of_turn.cancel()
                await asyncio.sleep(60.0)
            case "in a group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.fail("raises it"))
                    await group.create_task(self.fail("awaits what somebody cancelled"))
            case _:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60.0)
        return "went on"

    async def where(self) -> str:
        return self.silo

    async def echo(self, what: bytes) -> bytes:
        say(f"echoes {len(what)}")
        return what

    async def answer(self, size: int) -> bytes:
        say(f"answers {size}")
        return bytes(size)

    async def explain(self, size: int) -> None:
        say("explains")
        raise ValueError("x" * size)

    async def wait(self) -> None:
        await gate("go")


OWN_CANCELLATIONS = (
    "raises it",
    "awaits what somebody cancelled",
    "cancels itself",
    "in a group",
    "by a timeout of its own",
)


@pytest.mark.parametrize("silo", ["a", "b"], ids=["at the gateway", "elsewhere"])
@pytest.mark.parametrize("how", OWN_CANCELLATIONS)
async def test_S108_a_cancellation_that_nobody_asked_for_is_an_error_of_the_grain_and_comes_at_once(
    cluster: Cluster, how: str, silo: str
) -> None:
    await cluster.start("a", "b", kinds=(Canceller,))
    client = await cluster.client()
    canceller = client.grain(Canceller, "k")
    assert await with_hint(canceller, silo).where() == silo
    async with asyncio.timeout(SOON_S):
        with pytest.raises((RemoteError, TimeoutError)):
            await canceller.fail(how)
        assert await canceller.where() == silo


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_S109_calls_that_are_given_up_and_clients_that_go_leave_nothing_behind(cluster: Cluster) -> None:
    rng = random.Random(109)
    a, b = await cluster.start("a", "b", kinds=(Canceller,))

    async def use_and_go(client: Client) -> None:
        cancellers = [client.grain(Canceller, str(number)) for number in range(5)]
        calls = [asyncio.ensure_future(rng.choice(cancellers).echo(b"x" * 100)) for _ in range(50)]
        waiting = [asyncio.ensure_future(canceller.wait()) for canceller in cancellers]
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        for call in rng.sample(calls, 25):
            call.cancel()
        for wait in waiting:
            wait.cancel()
        await asyncio.wait([*calls, *waiting])
        await client.close()

    async def round_trips(count: int) -> None:
        for _ in range(count):
            await use_and_go(await cluster.client())

    def is_quiet() -> bool:
        return all(len(silo.runtime.book) == silo.runtime.router.arrived_count == 0 for silo in (a, b))

    await round_trips(3)
    await cluster.seen(is_quiet)
    tasks, files = len(asyncio.all_tasks()), descriptors()
    await round_trips(20)
    await cluster.seen(is_quiet)
    await cluster.seen(lambda: len(asyncio.all_tasks()) <= tasks)
    await cluster.seen(lambda: descriptors() <= files + 2)


SIZES = [int(3.9 * MIB), 4 * MIB, int(4.1 * MIB), 16 * MIB]


@pytest.mark.parametrize("size", SIZES)
async def test_S111_arguments_and_results_around_grpcs_own_limit_pass_on_every_road(
    cluster: Cluster, stage: Stage, size: int
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Canceller,))
    client = await cluster.client()
    callers: list[Client | Silo] = [client, a, b]  # from outside, from afar, and on its own silo
    for number, caller in enumerate(callers):
        canceller = with_hint(caller.grain(Canceller, str(number)), "b")
        assert len(await canceller.echo(bytes(size))) == size
    assert stage.lines == [f"echoes {size}"] * 3


@pytest.mark.in_memory
async def test_S111_what_is_beyond_the_limit_is_refused_by_its_sender_and_says_how_large_it_was(
    cluster: Cluster, stage: Stage
) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Canceller,))
    client = await cluster.client()
    limit = LinkLimits().frame_bytes_max
    callers: list[Client | Silo] = [client, a]
    for caller in callers:
        canceller = with_hint(caller.grain(Canceller, "k"), "b")
        assert await canceller.where() == "b"
        with pytest.raises(PayloadTooLarge) as refused:
            await canceller.echo(bytes(limit + 1))
        assert refused.value.size > refused.value.limit == limit
        assert stage.lines == []
        with pytest.raises(AnswerTooLarge) as ran:
            await canceller.answer(limit + 1)
        assert not isinstance(ran.value, NotExecuted)
        assert stage.lines == [f"answers {limit + 1}"]
        stage.lines.clear()
        assert await canceller.where() == "b"


async def test_S111_the_message_of_an_error_and_its_traceback_are_cut_to_what_may_travel(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Canceller,))
    client = await cluster.client()
    with pytest.raises(ValueError, match="xxx") as caught:
        await client.grain(Canceller, "k").explain(5 * MIB)
    assert sum(len(note) for note in caught.value.__notes__) < MIB
    assert stage.lines == ["explains"]
