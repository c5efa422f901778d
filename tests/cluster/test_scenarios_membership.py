"""What can go wrong with the members of a cluster, as the scenarios of that kind tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from silo.client import Client
from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.directory.membership import SiloStatus
from silo.grain import Grain, grain
from silo.host import Silo
from silo.reference import with_hint, with_timeout
from tests.cluster.clusters import LEASE
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, gate, say

ABC = ("a", "b", "c")
KNOWN_WITHIN_S = 1.3 * LEASE.lease_s
KNOWN_ALONE_WITHIN_S = LEASE.wait_alone_s + 0.3 * LEASE.lease_s
"""Where half or more of a silo's others die with it, nobody is left to assent to its death."""
"""By then the death of a silo is known, though nobody proves it."""
_instances = itertools.count(1)


@grain(kind="post")
class Post(Grain):
    """Says which of its instances takes which turn."""

    def __init__(self) -> None:
        self.instance = next(_instances)

    async def turn(self, call: str) -> str:
        say(f"{self.key} instance {self.instance} takes {call}")
        return self.silo

    async def turn_at(self, gate_name: str, key: str) -> str:
        """Begin, wait, and then call another one."""
        say(f"{self.key} began")
        await gate(gate_name)
        return await self.grain(Post, key).turn("a call made afterwards")


@dataclass
class Calls:
    """Calls that go on while things happen, and how each of them ended."""

    name: str = "call"
    answered: dict[str, float] = field(default_factory=dict[str, float])
    """When each call that was answered had been sent."""
    failed: dict[str, float] = field(default_factory=dict[str, float])
    """Likewise those that failed, with an error that says whether they ran."""
    slowest_s: float = 0.0
    goes_on: bool = True
    _number: int = 0

    async def keep_calling(
        self, caller: Client | Silo, keys: Sequence[str], deadline_s: float, every_s: float = 0.01
    ) -> None:
        """Call these grains in turn, each call in a task of its own; fails where one outlives its deadline."""
        async with asyncio.TaskGroup() as calls:
            for key in itertools.cycle(keys):
                if not self.goes_on:
                    break
                self._number += 1
                calls.create_task(self._call(caller.grain(Post, key), f"{self.name} {self._number}", deadline_s))
                await asyncio.sleep(every_s)

    async def _call(self, post: Post, name: str, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        try:
            async with asyncio.timeout(deadline_s + 1.0):
                await with_timeout(post, deadline_s).turn(name)
        except (NotExecuted, OutcomeUnknown):
            self.failed[name] = sent
        else:
            self.answered[name] = sent
        self.slowest_s = max(self.slowest_s, loop.time() - sent)


async def place_all(caller: Client | Silo, keys: Sequence[str], names: Sequence[str]) -> None:
    """Activate these grains on these silos in turn."""
    for key, name in zip(keys, itertools.cycle(names), strict=False):
        assert await with_hint(caller.grain(Post, key), name).turn("the first call") == name


def check_turns(stage: Stage) -> None:
    """No call ran twice, and no instance took a turn once a newer one of its grain had."""
    turns = [line.split(" takes ") for line in stage.lines if " takes " in line]
    calls = [call for _, call in turns if call.startswith("call ")]
    assert len(calls) == len(set(calls))
    newest: dict[str, int] = {}
    for taker, call in turns:
        key, instance = taker.split(" instance ")
        assert int(instance) >= newest.get(key, 0), f"an older instance of {key} took {call}"
        newest[key] = int(instance)


def instances(stage: Stage, key: str) -> int:
    """How many instances of this grain have taken turns."""
    return len({line.split(" takes ")[0] for line in stage.lines if line.startswith(f"{key} instance ")})


# ------------------------------------------------------------------------------------------------- silos that come back


@simulated
async def test_S022_a_silo_that_restarts_on_its_endpoint_is_never_taken_for_the_one_before(
    mortal: MortalCluster, stage: Stage
) -> None:
    await mortal.start(*ABC, kinds=(Post,))
    clients = [await mortal.client() for _ in range(2)]
    keys = [str(number) for number in range(20)]
    await place_all(clients[0], keys, "b")
    calls = Calls()
    calling = [asyncio.create_task(calls.keep_calling(client, keys, 8.0, every_s=0.05)) for client in clients]
    loop = asyncio.get_running_loop()
    for _ in range(2):
        endpoint, before = mortal.silos["b"].endpoint, mortal.silos["b"].address
        mortal.kill_now("b")
        died_at = loop.time()
        await asyncio.sleep(0.1)
        again = await mortal.start_one("b", kinds=(Post,))
        assert again.endpoint == endpoint
        assert again.address != before
        await mortal.seen(lambda: mortal.silos["a"].view.is_dead(before))  # noqa: B023 - awaited here
        assert loop.time() - died_at < KNOWN_WITHIN_S
        rows = [row for row in mortal.world.table.table.rows if row.silo.endpoint == endpoint]
        assert [row.silo for row in rows if row.status is not SiloStatus.DEAD] == [again.address]
        known_at = loop.time()
        await asyncio.sleep(3.0)
        assert [sent for sent in calls.failed.values() if sent > known_at] == []
    calls.goes_on = False
    await asyncio.gather(*calling)
    assert len(calls.answered) > 500
    assert len(calls.failed) < 10  # those that were running when it died; all others waited and were answered
    check_turns(stage)


@simulated
async def test_S024_a_silo_whose_row_has_vanished_gives_up_alone_and_comes_back_as_another(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, b, c = await mortal.start(*ABC, kinds=(Post,))
    client = await mortal.client()
    keys = [str(number) for number in range(30)]
    await place_all(client, keys, ABC)
    others = (a.address, c.address)
    before = b.address
    calls = Calls()
    calling = asyncio.create_task(calls.keep_calling(client, keys, 10.0))
    mortal.world.forget_row(before)
    await mortal.seen(lambda: b.address != before)
    await mortal.settled()
    await asyncio.sleep(1.0)
    calls.goes_on = False
    await calling
    assert (a.address, c.address) == others
    assert b.view.is_alive(b.address)
    assert len(calls.answered) > 100
    check_turns(stage)
    assert {await client.grain(Post, key).turn("the last call") for key in keys} <= set(ABC)
    mortal.assert_rows_match()


@simulated
async def test_S025_a_cluster_that_was_killed_whole_serves_again_within_the_lease_and_the_grace(
    mortal: MortalCluster, stage: Stage
) -> None:
    await story_of_a_power_cut(mortal, ["d", "e", "f"])
    check_turns(stage)


@simulated
async def test_S025_one_silo_that_comes_back_alone_needs_nobody_elses_word(mortal: MortalCluster, stage: Stage) -> None:
    await story_of_a_power_cut(mortal, ["d"])
    check_turns(stage)


async def story_of_a_power_cut(mortal: MortalCluster, newcomers: list[str]) -> None:
    """All silos die at once; two seconds later others start elsewhere, over rows that still say active."""
    await mortal.start(*ABC, kinds=(Post,))
    client = mortal.unopened_client([f"{name}:7000" for name in (*ABC, *newcomers)])
    await client.open()
    keys = [str(number) for number in range(30)]
    await place_all(client, keys, ABC)
    loop = asyncio.get_running_loop()
    for name in ABC:
        mortal.kill_now(name)
    died_at = loop.time()
    await asyncio.sleep(2.0)
    await asyncio.gather(*(mortal.start_one(name, kinds=(Post,)) for name in newcomers))
    assert loop.time() - died_at < 3.0  # stale rows do not keep it from joining
    homes = await asyncio.gather(*(with_timeout(client.grain(Post, key), 60.0).turn("after the cut") for key in keys))
    assert set(homes) <= set(newcomers)
    assert loop.time() - died_at < 2.0 + KNOWN_ALONE_WITHIN_S  # who joined after the deaths waits from then on
    mortal.assert_rows_match()


# ---------------------------------------------------------------------------- silos that do not hear that they are dead


@pytest.mark.parametrize("share", [0.5, 0.9, 1.3, 2.0])
@simulated
async def test_S027_a_silo_that_was_frozen_goes_on_within_its_lease_and_takes_no_turn_after_it(
    mortal: MortalCluster, stage: Stage, share: float
) -> None:
    """The share is of the time after which a death is known."""
    a, b, c = await mortal.start(*ABC, kinds=(Post,))
    client = await mortal.client()
    keys = ["held", *(str(number) for number in range(9))]
    await place_all(client, keys, "a")
    await place_all(client, ["other"], "c")
    holding = asyncio.create_task(with_timeout(client.grain(Post, "held"), 60.0).turn_at("go", "other"))
    await stage.heard("held began")
    calls = Calls()
    calling = asyncio.create_task(calls.keep_calling(client, keys[1:], 4.0))
    await asyncio.sleep(1.0)
    before = a.address
    mortal.freeze("a")
    await asyncio.sleep(share * LEASE.wait_s)
    stage.gate("go").open()
    mortal.thaw("a")
    is_dead = share > 1.0
    assert (b.view.is_dead(before), c.view.is_dead(before)) == (is_dead, is_dead)
    if is_dead:
        with pytest.raises(OutcomeUnknown):
            await holding
        await mortal.seen(lambda: a.address != before)
    else:
        assert await holding == "c"
        assert a.address == before
    await asyncio.sleep(1.0)
    calls.goes_on = False
    await calling
    check_turns(stage)
    assert any("a call made afterwards" in line for line in stage.lines) is not is_dead
    assert [instances(stage, key) for key in keys[1:]] == [2 if is_dead else 1] * 9


@simulated
async def test_S028_a_silo_that_cannot_learn_of_its_death_starts_nothing_and_nobody_takes_its_word(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, b, c = await mortal.start(*ABC, kinds=(Post,))
    client = await mortal.client()
    await place_all(client, ["here"], "a")
    await place_all(client, ["there"], "c")
    running = asyncio.create_task(with_timeout(client.grain(Post, "here"), 60.0).turn_at("go", "there"))
    await stage.heard("here began")
    before = a.address
    mortal.world.cut_lease("a")
    await mortal.seen(lambda: b.view.is_dead(before) and c.view.is_dead(before))
    stage.gate("go").open()
    with pytest.raises(OutcomeUnknown):
        await running
    stage.lines.clear()
    for key in ("here", "there"):
        with pytest.raises(NotExecuted):
            await with_timeout(a.grain(Post, key), 2.0).turn("by the dead")
    assert stage.lines == []
    assert await client.grain(Post, "here").turn("by the living") in ("b", "c")
    mortal.world.mend_leases()
    await mortal.seen(lambda: a.address != before)
    assert await a.grain(Post, "there").turn("by the one that came back") == "c"


# ------------------------------------------------------------------------------------------ small clusters, and a crowd


@simulated
async def test_S031_the_survivor_of_two_takes_over_and_no_call_hangs_meanwhile(
    mortal: MortalCluster, stage: Stage
) -> None:
    a, b = await mortal.start("a", "b", kinds=(Post,))
    client = await mortal.client()
    keys = [str(number) for number in range(50)]
    await place_all(client, keys, "b")
    calls = Calls()
    calling = asyncio.create_task(calls.keep_calling(client, keys, 4.0))
    dead = b.address
    mortal.kill_now("b")
    died_at = asyncio.get_running_loop().time()
    await mortal.seen(lambda: a.view.is_dead(dead))
    known_at = asyncio.get_running_loop().time()
    assert known_at - died_at < 1.5 * LEASE.lease_s
    await asyncio.sleep(2.0)
    calls.goes_on = False
    await calling
    assert [sent for sent in calls.failed.values() if sent > known_at] == []
    check_turns(stage)
    assert {await client.grain(Post, key).turn("the last call") for key in keys} == {"a"}


@simulated
async def test_S034_a_silo_joins_while_another_is_frozen_and_calls_between_the_others_never_stop(
    mortal: MortalCluster,
) -> None:
    a, b, _ = await mortal.start(*ABC, kinds=(Post,))
    callers = {"b": a, "a": b}
    for name, caller in callers.items():
        await place_all(caller, [f"at {name}"], name)
    calls = Calls()
    calling = [asyncio.create_task(calls.keep_calling(caller, [f"at {name}"], 1.0)) for name, caller in callers.items()]
    await asyncio.sleep(1.0)
    mortal.freeze("c")
    await mortal.start_one("d", kinds=(Post,))
    await asyncio.sleep(30.0)
    calls.goes_on = False
    await asyncio.gather(*calling)
    assert calls.failed == {}
    assert len(calls.answered) > 5_000
    assert calls.slowest_s < 0.02


@simulated
async def test_S035_two_silos_that_cannot_reach_each_other_kill_nobody_and_their_calls_end(
    mortal: MortalCluster, stage: Stage
) -> None:
    silos = await mortal.start("a", "b", "c", "d", "e", kinds=(Post,))
    a, _, c, *_ = silos
    await place_all(c, ["at b"], "b")
    await place_all(c, ["at d"], "d")
    addresses = [silo.address for silo in silos]
    across, beside = Calls("call across"), Calls("call beside")
    calling = [
        asyncio.create_task(across.keep_calling(a, ["at b"], 3.0, every_s=0.05)),
        asyncio.create_task(beside.keep_calling(c, ["at b", "at d"], 3.0, every_s=0.05)),
    ]
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1.0)
    cut_at = loop.time()
    mortal.world.network.cut("a", "b")
    await asyncio.sleep(60.0)
    mortal.world.network.heal()
    healed_at = loop.time()
    await asyncio.sleep(10.0)
    across.goes_on = beside.goes_on = False
    await asyncio.gather(*calling)
    assert [silo.address for silo in silos] == addresses
    assert {mortal.status_of(silo) for silo in silos} == {SiloStatus.ACTIVE}
    assert beside.failed == {}
    assert across.slowest_s < 3.5
    cut = [name for name, sent in across.failed.items() if cut_at < sent < healed_at]
    assert len(cut) > 1_000
    assert max(across.failed.values()) < healed_at + 2.0
    assert instances(stage, "at b") == 1
    check_turns(stage)
