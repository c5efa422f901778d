"""What a cluster does while its directory and its members' table cannot be asked; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio

import pytest

from silo.directory.errors import DirectoryUnavailable, NotExecuted, OutcomeUnknown
from silo.directory.membership import SiloStatus
from silo.grain import Grain, grain, soft_state
from silo.reference import with_hint, with_timeout
from tests.cluster.clusters import LEASE
from tests.cluster.mortal import MortalCluster, simulated

ABC = ("a", "b", "c")


@grain(kind="tally")
class Tally(Grain):
    """Counts."""

    count: int = soft_state(default=0)

    async def add(self) -> int:
        self.count += 1
        return self.count


@pytest.mark.parametrize(
    "outage_s", [3.0, 10.0, 40.0], ids=["less than a lease", "two leases", "longer than lease and grace"]
)
@simulated
async def test_S106_while_the_server_stands_still_nobody_dies_and_all_goes_on_where_it_was(
    mortal: MortalCluster, outage_s: float
) -> None:
    """Within lease and grace existing grains take no notice; beyond it they pause, and nobody can be declared dead."""
    silos = await mortal.start(*ABC, kinds=(Tally,))
    client = await mortal.client()
    tallies = [client.grain(Tally, str(number)) for number in range(30)]
    for number, tally in enumerate(tallies):
        await with_hint(tally, ABC[number % 3]).add()
    for silo in silos:  # so that each gateway knows where they are
        for number in range(30):
            await silo.grain(Tally, str(number)).add()
    addresses = [silo.address for silo in silos]
    before = mortal.placed()
    loop = asyncio.get_running_loop()
    within: list[float] = []
    answered = failed = 0

    async def call(tally: Tally) -> None:
        nonlocal answered, failed
        sent = loop.time()
        try:
            await with_timeout(tally, 2.0).add()
        except (NotExecuted, OutcomeUnknown):
            failed += 1
        else:
            answered += 1
            if sent < began + LEASE.lease_s + LEASE.grace_s - 2.0:
                within.append(loop.time() - sent)

    began = loop.time()
    mortal.world.without_table = set(ABC)
    mortal.world.without_directory = set(ABC)
    fresh = asyncio.create_task(with_timeout(client.grain(Tally, "fresh"), 2.0).add())
    async with asyncio.TaskGroup() as calls:
        while loop.time() < began + outage_s:
            calls.create_task(call(tallies[int(loop.time() * 100) % 30]))
            await asyncio.sleep(0.01)
        with pytest.raises(DirectoryUnavailable):
            await fresh
        mortal.world.without_table.clear()
        mortal.world.without_directory.clear()
        back = loop.time()
    assert len(within) > 250
    assert max(within) < 0.01
    assert bool(failed) is (outage_s > LEASE.lease_s + LEASE.grace_s)
    for tally in tallies:
        await with_timeout(tally, 3.0).add()
    assert await client.grain(Tally, "fresh").add() == 1
    assert loop.time() - back < 3.0
    await asyncio.sleep(20.0)
    assert [silo.address for silo in silos] == addresses
    assert {mortal.status_of(silo) for silo in silos} == {SiloStatus.ACTIVE}
    assert before <= mortal.placed()
    mortal.assert_rows_match()
    total = sum([await tally.add() for tally in tallies])
    others = (1 + len(silos) + 1 + 1) * len(tallies)  # before the outage, after it, and for the total
    assert others + answered <= total <= others + answered + failed
