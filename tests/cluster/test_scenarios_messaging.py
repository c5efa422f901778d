"""What can go wrong with calls, as the scenarios of kind messaging tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter as Tally
from typing import Any

import pytest

from silo.client import Client
from silo.directory.errors import (
    ActivationFailed,
    CallCycle,
    CallExpired,
    CallTimeout,
    DirectoryUnavailable,
    NestedCallFailed,
    NotExecuted,
    OutcomeUnknown,
)
from silo.directory.memory_directory import DirectoryCall
from silo.grain import Grain, grain, read_only
from silo.host import Silo
from silo.reference import with_hint, with_timeout
from silo.wire.frames import Outcome, Reply
from tests.cluster.clusters import LEASE, Cluster
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, gate, say

KNOWN_WITHIN_S = 1.3 * LEASE.lease_s
"""By then the death of a silo is known, though nobody proves it."""


@grain(kind="meter")
class Meter(Grain):
    """Counts what it executes, and says so."""

    def __init__(self) -> None:
        self.count = 0

    async def on_activate(self) -> None:
        say(f"{self.key} begins")

    async def add(self, call: str) -> str:
        say(f"executed {call}")
        self.count += 1
        return call

    async def add_slowly(self, call: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return await self.add(call)

    async def total(self) -> int:
        return self.count


def executed(stage: Stage) -> Tally[str]:
    """How often each call was executed."""
    return Tally(line.removeprefix("executed ") for line in stage.lines if line.startswith("executed "))


async def ended(call: asyncio.Future[Any] | asyncio.Task[Any]) -> object:
    """The result of a call, or the error that says whether it ran."""
    try:
        return await call
    except (NotExecuted, OutcomeUnknown) as error:
        return error


# -------------------------------------------------------------------------------------- a directory that refuses writes


@pytest.mark.parametrize("silos", ["a", "abc"])
@simulated
async def test_S079_while_registrations_fail_calls_end_in_time_without_a_storm_and_go_on_afterwards(
    mortal: MortalCluster, stage: Stage, silos: str
) -> None:
    await mortal.start(*silos, kinds=(Meter,))
    client = await mortal.client()
    old = client.grain(Meter, "old")
    await old.add("first")
    asked = 0

    async def refuse(call: DirectoryCall) -> None:
        nonlocal asked
        asked += 1
        if call == "register":
            raise DirectoryUnavailable("the server refuses writes")

    mortal.world.before = dict.fromkeys(silos, refuse)
    loop = asyncio.get_running_loop()
    began = loop.time()
    new = with_timeout(client.grain(Meter, "new"), 5.0)
    calls = [asyncio.create_task(new.add(f"new {number}")) for number in range(100)]
    assert await old.add("second") == "second"
    outcomes = await asyncio.gather(*(ended(call) for call in calls))
    assert {type(each) for each in outcomes} <= {DirectoryUnavailable, CallExpired}
    assert [str(each) for each in outcomes if "the server refuses writes" not in str(each)] == []
    assert loop.time() - began < 6.0
    assert "new begins" not in stage.lines
    assert asked < 100  # for a hundred calls within five seconds, all tries at all silos
    mortal.world.before.clear()
    began = loop.time()
    assert await new.add("afterwards") == "afterwards"
    assert loop.time() - began < 2.0
    assert executed(stage) == {"first": 1, "second": 1, "afterwards": 1}


# --------------------------------------------------------------------------------------- a silo that is down, or silent


@pytest.mark.parametrize("how", ["killed", "frozen"])
@simulated
async def test_S081_calls_to_a_silo_that_is_not_declared_dead_yet_end_in_time_and_run_at_most_once(
    mortal: MortalCluster, stage: Stage, how: str
) -> None:
    a, b, _ = await mortal.start("a", "b", "c", kinds=(Meter,))
    meters = [a.grain(Meter, str(number)) for number in range(10)]
    for meter in meters:
        await with_hint(meter, "b").add("first")
    loop = asyncio.get_running_loop()
    running = [asyncio.create_task(with_timeout(meter, 30.0).add_slowly("running", 3.0)) for meter in meters]
    await asyncio.sleep(0.1)
    dead = b.address
    down_at = loop.time()
    if how == "killed":
        mortal.kill_now("b")
    else:
        mortal.freeze("b")
    results: list[tuple[float, float, object]] = []

    async def call(number: int, deadline_s: float) -> None:
        sent = loop.time()
        outcome = await ended(asyncio.ensure_future(with_timeout(meters[number % 10], deadline_s).add(f"{number}")))
        results.append((sent, loop.time() - sent, outcome))

    async with asyncio.TaskGroup() as calls:
        for number in range(400):
            calls.create_task(call(number, 2.0 if number % 2 else 10.0))
            await asyncio.sleep(0.02)
    assert all(isinstance(each, OutcomeUnknown) for each in await asyncio.gather(*(ended(call) for call in running)))
    assert a.view.is_dead(dead)
    assert loop.time() - down_at < 15.0
    assert max(took for _, took, _ in results) < KNOWN_WITHIN_S + 1.0
    late = [outcome for sent, _, outcome in results if sent > down_at + KNOWN_WITHIN_S]
    assert late
    assert all(isinstance(outcome, str) for outcome in late)
    times = executed(stage)
    del times["first"]
    assert set(times.values()) == {1}


# --------------------------------------------------------------------------------------------- many calls that time out


async def test_S083_calls_that_time_out_and_their_late_answers_leave_nothing_in_any_book(
    cluster: Cluster, stage: Stage
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Meter,))
    client = await cluster.client()
    meters = [(a, client)[number % 2].grain(Meter, str(number)) for number in range(200)]
    for meter in meters:
        await with_hint(meter, "b").total()

    async def call(number: int) -> object:
        meter = with_timeout(meters[number], 0.5)
        return await ended(asyncio.ensure_future(meter.add_slowly(f"call {number}", 0.1 if number < 100 else 0.6)))

    for _ in range(10):
        answers = await asyncio.gather(*(call(number) for number in range(200)))
        assert answers[:100] == [f"call {number}" for number in range(100)]
        assert all(isinstance(answer, CallTimeout | NotExecuted) for answer in answers[100:])
        await cluster.seen(lambda: len(a.runtime.book) == len(b.runtime.book) == 0)
        await cluster.seen(lambda: a.runtime.router.arrived_count == b.runtime.router.arrived_count == 0)
    link = a.runtime.links.to(b.address)
    waiting = asyncio.create_task(meters[0].add_slowly("real", 1.0))
    await asyncio.sleep(0.1)
    (real,) = (call for call in a.runtime.book.sent_to(str(b.address)))
    a.runtime.on_frame(link, Reply(real.id + 1, Outcome.VALUE, b"\xa5false"))
    assert await waiting == "real"


# -------------------------------------------------------------------------------------------------------------- circles


class _Node(Grain):
    async def on_activate(self) -> None:
        if self.key.startswith("calls back"):
            await self.grain(KINDS[type(self).__name__], "0").follow([])
        if self.key == "waits for itself":
            await self.grain(KINDS[type(self).__name__], "0").follow(["1", self.key])

    async def follow(self, path: list[str]) -> str:
        """Go on with the path, from grain to grain."""
        if not path:
            return f"{self.key} was reached"
        return await self.grain(KINDS[type(self).__name__], path[0]).follow(path[1:])

    async def meet(self, others: list[str]) -> list[object]:
        """Let each of two others call the other one, at the same time."""
        one, two = (self.grain(KINDS[type(self).__name__], key) for key in others)
        calls = [
            asyncio.ensure_future(one.wait_and_follow(others[1:])),
            asyncio.ensure_future(two.wait_and_follow(others[:1])),
        ]
        return [type(each).__name__ for each in await asyncio.gather(*calls, return_exceptions=True)]

    async def wait_and_follow(self, path: list[str]) -> str:
        say("meets")
        await gate("both")
        return await with_timeout(self.grain(KINDS[type(self).__name__], path[0]), 1.0).follow(path[1:])

    @read_only
    async def where(self) -> str:
        return self.silo


@grain(kind="node")
class Node(_Node):
    """Admits nobody while it waits."""


@grain(kind="open.node", reentrant="call_chain")
class OpenNode(_Node):
    """Admits the calls of its own chain."""


KINDS: dict[str, type[_Node]] = {"Node": Node, "OpenNode": OpenNode}
SHAPES = {
    "itself": ["0"],
    "two": ["1", "0"],
    "three": ["1", "2", "0"],
    "five": ["1", "2", "3", "4", "0"],
    "by on_activate": ["calls back"],
}
PLACES = ("one silo", "across silos", "after a move")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [Node, OpenNode])
async def test_S084_a_circle_of_any_length_is_refused_at_once_or_admitted_by_the_same_rule(
    cluster: Cluster, kind: type[_Node], shape: str, place: str
) -> None:
    await cluster.start("a", "b", kinds=(Node, OpenNode))
    client = await cluster.client()
    keys = [str(number) for number in range(5)]
    for number, key in enumerate(keys):
        silo = "a" if place == "one silo" or number % 2 == 0 else "b"
        assert await with_hint(client.grain(kind, key), silo).where() == silo
    if place == "after a move":
        middle = client.grain(kind, "1")
        assert (await client.migrate(middle, to="a")).moved
    first = client.grain(kind, "0")
    loop = asyncio.get_running_loop()
    began = loop.time()
    path = SHAPES[shape]
    if kind is OpenNode:
        assert await first.follow(path) == f"{path[-1]} was reached"
    else:
        with pytest.raises((CallCycle, NestedCallFailed)) as caught:
            await first.follow(path)
        assert "node/0" in str(caught.value)
        assert "CallCycle" in str(caught.value)
    assert loop.time() - began < 0.5
    for key in keys:
        assert await client.grain(kind, key).follow([]) == f"{key} was reached"


@pytest.mark.parametrize("kind", [Node, OpenNode])
async def test_S084_a_grain_whose_start_waits_for_itself_fails_at_once(cluster: Cluster, kind: type[_Node]) -> None:
    """Whatever its kind says: nothing runs in a grain that has not started."""
    await cluster.start("a", "b", kinds=(Node, OpenNode))
    client = await cluster.client()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises((ActivationFailed, CallCycle), match="waits for itself -> "):
        await client.grain(kind, "waits for itself").follow([])
    assert loop.time() - began < 0.5
    for key in ("0", "1"):
        assert await client.grain(kind, key).follow([]) == f"{key} was reached"


async def test_S084_two_chains_that_wait_for_each_other_end_by_their_deadline_and_say_who_waited(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Node,))
    client = await cluster.client()
    meeting = asyncio.create_task(client.grain(Node, "0").meet(["1", "2"]))
    await stage.heard("meets", times=2)
    stage.gate("both").open()
    async with asyncio.timeout(2.0):
        assert await meeting == ["NestedCallFailed", "NestedCallFailed"]
    for key in ("0", "1", "2"):
        assert await client.grain(Node, key).follow([]) == f"{key} was reached"


# --------------------------------------------------------------------------------------------- what belongs to one call

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


@grain(kind="confidant", reentrant=True)
class Confidant(Grain):
    """Tells which user its code sees."""

    async def on_activate(self) -> None:
        self.at_start = user.get()

    async def seen(self, pause_s: float = 0.0) -> list[str]:
        """At the start of the activation, now, in a task, and after others had their turn; then leaves a mark."""
        now = user.get()
        in_task = await asyncio.create_task(self._in_task())
        await asyncio.sleep(pause_s)
        later = user.get()
        user.set(f"set by {self.key}")
        return [self.at_start, now, in_task, later]

    async def seen_by(self, key: str) -> list[str]:
        user.set("mallory")
        return await self.grain(Confidant, key).seen()

    async def _in_task(self) -> str:
        return user.get()


async def test_S085_nothing_of_one_calls_context_shows_in_another_call_here_or_afar(cluster: Cluster) -> None:
    rng = random.Random(85)
    a, b = await cluster.start("a", "b", kinds=(Confidant,))
    client = await cluster.client()

    async def call(number: int) -> list[str]:
        user.set(f"user {number}")
        caller = (a, b, client)[number % 3]
        confidant = with_hint(caller.grain(Confidant, str(number % 4)), "ab"[number % 2])
        seen = await (
            confidant.seen_by(str((number + 1) % 4)) if number % 5 == 0 else confidant.seen(rng.uniform(0, 0.01))
        )
        assert user.get() == f"user {number}"
        return seen

    for seen in await asyncio.gather(*(call(number) for number in range(400))):
        assert seen == ["nobody"] * 4

    user.set("alice")
    third = await cluster.start("c", kinds=(Confidant,))  # connections that alice's task has opened
    assert await with_hint(third[0].grain(Confidant, "bob's"), "a").seen() == ["nobody"] * 4


# ------------------------------------------------------------------------------------------------- callers that give up


@grain(kind="listener")
class Listener(Grain):
    """Works for a moment, and says how that went."""

    async def work(self, call: str, stubborn: bool) -> str:
        say(f"{call} begins")
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            say(f"{call} cancelled")
            if not stubborn:
                raise
        say(f"{call} ends")
        return call

    async def where(self) -> str:
        return self.silo


async def test_S086_a_call_that_is_given_up_at_any_moment_ends_once_and_disturbs_no_other(
    cluster: Cluster, stage: Stage
) -> None:
    rng = random.Random(86)
    silos = await cluster.start("a", "b", "c", kinds=(Listener,))
    client = await cluster.client()
    callers: list[Silo | Client] = [silos[0], silos[1], client]
    keys = [str(number) for number in range(4)]
    for key in keys:
        await with_hint(client.grain(Listener, key), "b").where()
    given_up: set[str] = set()

    async def call(number: int) -> None:
        name = f"call {number}"
        listener = callers[number % 3].grain(Listener, keys[number % 4])
        task = asyncio.ensure_future(listener.work(name, stubborn=number % 7 == 0))
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        if number % 2:
            given_up.add(name) if task.cancel() else None
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is (name in given_up)
        else:
            assert await task == name

    async def move_about() -> None:
        for number in range(20):
            await client.migrate(client.grain(Listener, keys[number % 4]), to="abc"[number % 3])
            await asyncio.sleep(0.1)

    moving = asyncio.create_task(move_about())
    for first in range(0, 720, 12):
        await asyncio.gather(*(call(number) for number in range(first, first + 12)))
    await moving
    for caller in silos:
        await cluster.seen(lambda: len(caller.runtime.book) == caller.runtime.router.arrived_count == 0)  # noqa: B023
    for key in keys:
        await client.grain(Listener, key).where()
    said = Tally(stage.lines)
    assert max(said.values()) == 1
    assert len(given_up) > 80
    begun = [line.removesuffix(" begins") for line in said if line.endswith(" begins")]
    assert 0 < sum(name in given_up for name in begun) < len(given_up)  # some while they ran, some before
    for name in begun:
        if name not in given_up:
            assert (said[f"{name} cancelled"], said[f"{name} ends"]) == (0, 1)
        else:
            assert said[f"{name} cancelled"] + said[f"{name} ends"] >= 1


# ------------------------------------------------------------------------------------------ what must not be sent twice


@pytest.mark.parametrize("what", ["the answers are lost", "the silo is frozen"])
@simulated
async def test_S088_a_call_that_may_have_run_is_not_sent_again_whatever_is_lost(
    mortal: MortalCluster, stage: Stage, what: str
) -> None:
    a, b, _ = await mortal.start("a", "b", "c", kinds=(Meter,))
    meters = [a.grain(Meter, str(number)) for number in range(5)]
    for meter in meters:
        await with_hint(meter, "b").total()
    outcomes: dict[str, object] = {}

    async def call(number: int) -> None:
        meter = with_timeout(meters[number % 5], 1.0 if number % 2 else 20.0)
        outcomes[f"{number}"] = await ended(asyncio.ensure_future(meter.add(f"{number}")))

    async with asyncio.TaskGroup() as calls:
        for number in range(600):
            calls.create_task(call(number))
            await asyncio.sleep(0.01)
            if number == 100 and what == "the answers are lost":
                mortal.world.network.cut("b", "a", one_way=True)
            elif number == 100:
                mortal.freeze("b")
            elif number == 400:
                mortal.world.network.heal()
                mortal.thaw("b")
    times = executed(stage)
    assert max(times.values()) == 1
    for name, outcome in outcomes.items():
        if isinstance(outcome, NotExecuted):
            assert times[name] == 0
        elif isinstance(outcome, str):
            assert times[name] == 1
    acknowledged = sum(isinstance(outcome, str) for outcome in outcomes.values())
    unknown = sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes.values())
    assert unknown > 20
    assert acknowledged <= sum(times.values()) <= acknowledged + unknown
    assert mortal.status_of(b).name == "ACTIVE"
    assert sum([await meter.total() for meter in meters]) == sum(times.values())
