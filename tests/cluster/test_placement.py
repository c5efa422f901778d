"""Where new activations land in a cluster that runs: policies, loads, and who may host what. R-301 and after."""

from __future__ import annotations

import asyncio
import random
from collections import Counter as Tally
from collections.abc import Callable

import pytest

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainUnplaceable, NotExecuted
from silo.grain import Grain, grain, soft_state
from silo.placement.filters import Prefer, Require
from silo.placement.policies import ConsistentHashPlacement
from silo.placement.policy import Candidate, PlacementView, PolicyRuntime
from silo.reference import grain_id, with_hint, with_timeout
from silo.settings import PlacementSettings
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger, Witness
from tests.cluster.stage import Stage

pytestmark = pytest.mark.real


class Directing:
    """A policy that sends grains where the test says, and tells what it is asked."""

    name = "directing"

    def __init__(self) -> None:
        self.attached: list[PolicyRuntime] = []
        self.torn_down: list[SiloAddress] = []
        self.loops: list[bool] = []
        self.raises_in_attach = False

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        self.attached.append(runtime)
        if self.raises_in_attach:
            raise RuntimeError("cannot be attached")
        return lambda: self.torn_down.append(runtime.silo)

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        wanted = grain.key.partition(" ")[0]
        return next((each.silo for each in view.candidates if each.name == wanted), view.candidates[0].silo)


DIRECTING = Directing()


@grain(kind="directed", placement=DIRECTING)
class Directed(Grain):
    async def where(self) -> str:
        return self.silo


@grain(kind="also-directed", placement=DIRECTING)
class AlsoDirected(Directed):
    pass


@grain(kind="local", placement="prefer-local")
class Local(Grain):
    async def where(self) -> str:
        return self.silo


@grain(kind="starter")
class Starter(Grain):
    async def start(self, keys: list[str]) -> list[str]:
        return [await self.grain(Local, key).where() for key in keys]


@grain(kind="hashed", placement="consistent-hash")
class Hashed(Grain):
    async def where(self) -> str:
        return self.silo


@grain(kind="balanced", placement="activation-count")
class Balanced(Grain):
    count: int = soft_state(default=0)

    async def touch(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture(autouse=True)
def _fresh_policy() -> None:
    DIRECTING.__init__()  # type: ignore[misc] # the grain classes hold this very object


async def test_R301_a_policy_decides_on_new_activations_only(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,), placement=PlacementSettings(policy="random"))
    client = await cluster.client()
    ledgers = [client.grain(Ledger, f"k{number}") for number in range(20)]
    for ledger in ledgers:
        await ledger.write("x")
    before = {ledger: await cluster.entry(ledger) for ledger in ledgers}
    await cluster.start("c", kinds=(Ledger,), placement=PlacementSettings(policy="prefer-local"))
    c = cluster.silos["c"]
    for ledger in ledgers:
        assert await c.grain(Ledger, ledger.key).write("y") == 2
    assert {ledger: await cluster.entry(ledger) for ledger in ledgers} == before  # a join moves nothing
    assert {await c.grain(Ledger, f"new {number}").where() for number in range(10)} == {"c"}


async def test_R305_grains_spread_at_random_where_nobody_says_otherwise(cluster: Cluster) -> None:
    await cluster.start("a", "b", "c", kinds=(Ledger,))
    client = await cluster.client()
    homes = Tally(await asyncio.gather(*(client.grain(Ledger, f"k{number}").where() for number in range(60))))
    assert set(homes) == {"a", "b", "c"}
    assert max(homes.values()) < 40


async def test_R307_prefer_local_places_a_grain_on_the_silo_of_its_caller(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Local, Starter))
    client = await cluster.client()
    for silo in ("a", "b"):
        starter = with_hint(client.grain(Starter, silo), silo)
        assert await starter.start([f"{silo} {number}" for number in range(5)]) == [silo] * 5


async def test_R309_R310_consistent_hash_is_the_same_at_every_silo_and_a_client_can_apply_the_clusters_own_rule(
    cluster: Cluster,
) -> None:
    silos = await cluster.start("a", "b", "c", kinds=(Hashed,))
    rows = silos[0].view.active()
    view = PlacementView(0, tuple(Candidate.of(row) for row in rows), random.Random(0))
    names = {row.silo: row.info.name for row in rows}
    rule = ConsistentHashPlacement()
    for number in range(15):
        hashed = silos[number % 3].grain(Hashed, f"k{number}")  # placed by each of them in turn
        assert await hashed.where() == names[rule.choose(grain_id(hashed), view, None)]


async def test_R311_R315_activation_count_evens_out_a_burst(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Balanced,))
    client = await cluster.client()
    grains = [client.grain(Balanced, f"k{number}") for number in range(60)]
    await asyncio.gather(*(each.touch() for each in grains))
    homes = Tally(cluster.home(each) for each in grains)
    assert max(homes.values()) - min(homes.values()) <= 8


async def test_R312_R318_loads_travel_between_the_silos_and_a_fresh_silo_attracts_work(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Balanced,))
    client = await cluster.client()
    await asyncio.gather(*(client.grain(Balanced, f"k{number}").touch() for number in range(40)))
    await cluster.seen(lambda: b.runtime.loads.peer_load(a.address) == len(a.activations()))
    await cluster.seen(lambda: a.runtime.loads.peer_load(b.address) == len(b.activations()))
    (c,) = await cluster.start("c", kinds=(Balanced,))
    await asyncio.gather(*(client.grain(Balanced, f"new {number}").touch() for number in range(20)))
    assert len(c.activations()) >= 8


async def test_R319_a_newcomer_is_filled_up_and_not_run_over(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Balanced,))
    await asyncio.gather(*(a.grain(Balanced, f"k{number}").touch() for number in range(60)))
    (c,) = await cluster.start("c", kinds=(Balanced,))
    burst = [silo.grain(Balanced, f"{silo.name} {number}").touch() for number in range(20) for silo in (a, b, c)]
    await asyncio.gather(
        *burst
    )  # placed by three silos at once, and before any of them has heard of the others' choices
    counts = [len(silo.activations()) for silo in (a, b, c)]
    assert sum(counts) == 120
    assert counts[2] <= 50


async def test_R320_loads_that_are_wrong_cost_balance_and_nothing_else(cluster: Cluster, stage: Stage) -> None:
    silos = await cluster.start("a", "b", "c", kinds=(Witness,), placement=PlacementSettings(policy="activation-count"))
    for silo in silos:
        for other in silos:  # from here on, each believes that all but itself are empty
            silo.runtime.loads.forget(other.address)
    names = [f"k{number}" for number in range(30)]
    calls = [silo.grain(Witness, name).turn() for name in names for silo in silos]
    answers = await asyncio.gather(*calls)
    assert len(answers) == 90
    assert stage.lines.count("constructor") == 30  # though three silos placed each of them at the same time
    assert [await silos[0].grain(Witness, name).count() for name in names] == [3] * 30


async def test_R321_R323_a_policy_is_attached_once_per_silo_and_torn_down_when_the_silo_stops(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Directed, AlsoDirected))
    assert sorted(runtime.silo for runtime in DIRECTING.attached) == sorted((a.address, b.address))
    client = await cluster.client()
    assert await client.grain(Directed, "b first").where() == "b"
    assert await client.grain(AlsoDirected, "a first").where() == "a"
    runtime = next(runtime for runtime in DIRECTING.attached if runtime.silo == a.address)
    assert [row.info.name for row in runtime.view().active()] == ["a", "b"]
    assert runtime.self_load() == 1
    assert DIRECTING.torn_down == []
    gone = b.address
    await cluster.stop("b")
    assert DIRECTING.torn_down == [gone]


class Cancelling:
    """A policy in which something ends as cancelled."""

    name = "cancelling"

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        raise asyncio.CancelledError


@grain(kind="called-off", placement=Cancelling())
class CalledOff(Grain):
    async def where(self) -> str:
        return self.silo


@pytest.mark.in_memory
async def test_R325_a_policy_that_ends_as_cancelled_leaves_no_call_waiting(cluster: Cluster) -> None:
    (a,) = await cluster.start("a", kinds=(CalledOff,))
    for _ in range(2):  # and the grain can be looked for again
        with pytest.raises(NotExecuted, match="could not be located: CancelledError"):
            await a.grain(CalledOff, "k").where()


async def test_R322_a_policy_that_cannot_be_attached_goes_on_without(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    DIRECTING.raises_in_attach = True
    await cluster.start("a", "b", kinds=(Directed,))
    client = await cluster.client()
    assert await client.grain(Directed, "b first").where() == "b"
    assert "cannot be attached" in caplog.text
    await cluster.stop("a")
    assert DIRECTING.torn_down == []


async def test_R324_force_policies_beat_the_declaration_and_type_policies_beat_the_clusters_policy(
    cluster: Cluster,
) -> None:
    rules = PlacementSettings(
        policy="random", type_policies={"ledger": "prefer-local"}, force_policies={"hashed": "prefer-local"}
    )
    a, b = await cluster.start("a", "b", kinds=(Ledger, Hashed), placement=rules)
    for silo in (a, b):
        for number in range(5):
            key = f"{silo.name} {number}"
            assert await silo.grain(Ledger, key).where() == silo.name
            assert await silo.grain(Hashed, key).where() == silo.name


async def test_R325_a_kind_that_some_silos_host_lands_on_those_alone_from_wherever_it_is_called(
    cluster: Cluster,
) -> None:
    a, b, c = await cluster.start("a", kinds=(Ledger, Witness)) + await cluster.start("b", "c", kinds=(Witness,))
    client = await cluster.client()
    for number in range(8):
        key = f"k{number}"
        assert await client.grain(Ledger, key).where() == "a"
        assert await b.grain(Ledger, key).where() == "a"
        assert await c.grain(Ledger, f"other {key}").where() == "a"
    outcome = await client.migrate(client.grain(Ledger, "k0"))
    assert not outcome.moved
    assert outcome.why.startswith("no other silo may host it")
    assert a.activations()


async def test_R325_a_silo_that_leaves_receives_nothing_new(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    busy = with_hint(client.grain(Ledger, "busy"), "b")
    running = asyncio.create_task(busy.write_at("go", "running"))
    await stage.heard("started running")
    stopping = asyncio.create_task(cluster.silos["b"].drain_and_stop())
    await cluster.draining(busy)
    homes = {await with_hint(client.grain(Ledger, f"k{number}"), "b").where() for number in range(10)}
    assert homes == {"a"}
    stage.gate("go").open()
    assert await running == "b"
    await stopping
    del cluster.silos["b"]
    assert await busy.read() == ["running"]


async def test_filters_by_metadata_come_before_the_policy(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Zoned, Preferring), meta={"zone": "north"})
    await cluster.start("c", kinds=(Zoned, Preferring), meta={"zone": "south"})
    client = await cluster.client()
    assert {await client.grain(Zoned, f"k{number}").where() for number in range(10)} == {"c"}
    assert {await client.grain(Preferring, f"k{number}").where() for number in range(10)} == {"c"}
    await cluster.stop("c")
    assert {await client.grain(Preferring, f"more {number}").where() for number in range(10)} == {"a", "b"}
    with pytest.raises(GrainUnplaceable, match="south"):
        await with_timeout(client.grain(Zoned, "k"), 0.3).where()


@grain(kind="zoned", placement=[Require(zone="south")])
class Zoned(Grain):
    async def where(self) -> str:
        return self.silo


@grain(kind="preferring", placement=[Prefer(zone="south"), "random"])
class Preferring(Grain):
    async def where(self) -> str:
        return self.silo
