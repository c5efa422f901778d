"""What a move promises: an owner at all times, nothing lost or run twice, order and state kept. R-404 and after."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice

import pytest

from silo.directory.addresses import Entry, GrainId
from silo.grain import Grain, grain, soft_state
from silo.host import Silo
from silo.migrate import migrate
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MoveReason, MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import grain_id, with_hint
from silo.settings import MigrationSettings
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.grains import Ledger, Witness
from tests.cluster.stage import Stage, gate, say
from tests.support.memory_cluster import FaultyStand

pytestmark = pytest.mark.real
ABC = ("a", "b", "c")


async def active_at(cluster: Cluster, ledger: Ledger, silo: str) -> None:
    """Have the grain activated on that silo."""
    await with_hint(ledger, silo).write("first")
    assert cluster.home(ledger) == silo


async def test_R404a_at_no_instant_of_a_move_is_the_grain_without_an_owner(cluster: Cluster, stage: Stage) -> None:
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    directory = cluster.silos["a"].runtime.directory
    seen: list[Entry | None] = []
    goes_on = True

    async def poll() -> None:
        while goes_on:
            seen.extend(await directory.lookup([grain_id(ledger)]))
            await asyncio.sleep(0)

    polling = asyncio.create_task(poll())
    for target in ("b", "c", "a", "b"):
        assert (await client.migrate(ledger, to=target)).moved
    goes_on = False
    await polling
    assert seen
    assert None not in seen
    epochs = [entry.epoch for entry in seen if entry is not None]
    assert epochs == sorted(epochs)


async def test_R404b_R448_a_stale_cache_does_not_activate_the_grain_at_its_old_place(
    cluster: Cluster, stage: Stage
) -> None:
    a, _, _ = await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "b")
    assert await a.grain(Ledger, "k").where() == "b"  # from here on, a believes so
    await cluster.silos["b"].migrate(ledger, to="c")
    assert stage.lines.count("built k") == 2
    assert [await a.grain(Ledger, "k").where() for _ in range(3)] == ["c"] * 3
    assert stage.lines.count("built k") == 2


async def test_R448_a_stale_cache_does_not_revive_a_deactivated_grain_beside_its_new_activation(
    cluster: Cluster, stage: Stage
) -> None:
    a, b, c = await cluster.start(*ABC, kinds=(Witness,))
    await with_hint(b.grain(Witness, "k"), "b").turn()
    assert await a.grain(Witness, "k").turn() == "b"
    await b.grain(Witness, "k").leave()
    await stage.heard("on_deactivate application")
    await cluster.seen(lambda: not cluster.is_active(b.grain(Witness, "k")))
    assert await with_hint(c.grain(Witness, "k"), "c").turn() == "c"
    assert await a.grain(Witness, "k").turn() == "c"  # a still believed in b
    assert stage.lines.count("constructor") == 2


async def test_R404c_R441_a_grain_that_is_called_all_the_time_does_change_silo(cluster: Cluster) -> None:
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    goes_on = True
    answers: list[int] = []

    async def call() -> None:
        while goes_on:
            answers.append(await ledger.write("again"))

    callers = [asyncio.create_task(call()) for _ in range(4)]
    for target in ("b", "c", "a"):
        assert (await client.migrate(ledger, to=target)).moved
    goes_on = False
    await asyncio.gather(*callers)
    assert sorted(answers) == list(range(2, len(answers) + 2))  # each one ran, and ran once


@pytest.mark.in_memory
async def test_R405_twenty_silos_that_call_a_moving_grain_yield_one_activation_and_one_construction_per_move(
    stage: Stage,
) -> None:
    cluster = Cluster(MemoryStand())
    names = [f"s{number}" for number in range(20)]
    silos = await cluster.start(*names, kinds=(Ledger,))
    goes_on = True
    answers: list[int] = []

    async def call(silo: Silo) -> None:
        ledger = silo.grain(Ledger, "k")
        while goes_on:
            answers.append(await ledger.write(silo.name))
            await asyncio.sleep(0.005)  # virtual; without it nearly all of the test is calls between the moves

    callers = [asyncio.create_task(call(silo)) for silo in silos]
    ledger = silos[0].grain(Ledger, "k")
    await ledger.write("test")
    moves = 6
    for number in range(moves):
        await cluster.seen(lambda: cluster.is_active(ledger))
        target = next(name for name in names[number * 3 :] if name != cluster.home(ledger))
        assert (await silos[number].migrate(ledger, to=target)).moved
    goes_on = False
    await asyncio.gather(*callers)
    assert stage.lines.count("built k") == 1 + moves
    assert len(await ledger.read()) == len(answers) + 1
    assert len(set(answers)) == len(answers)
    await cluster.close()


class Provider:
    """A storage provider that uses the facility of participants to skip the reload."""

    name = "storage"
    loads = 0

    def __init__(self) -> None:
        self.value: str | None = None

    def get(self) -> str:
        if self.value is None:
            Provider.loads += 1
            self.value = "loaded"
        return self.value

    def on_dehydrate(self, context: DehydrateContext) -> None:
        context["value"] = self.value

    def on_rehydrate(self, context: RehydrateContext) -> None:
        self.value = context["value"]


@grain(kind="stored")
class Stored(Grain):
    def __init__(self) -> None:
        self.provider = Provider()
        self.add_participant(self.provider)

    async def get(self) -> str:
        return self.provider.get()


async def test_R406_a_storage_provider_that_takes_part_reads_nothing_during_a_move(cluster: Cluster) -> None:
    await cluster.start(*ABC, kinds=(Stored,))
    client = await cluster.client()
    stored = client.grain(Stored, "k")
    Provider.loads = 0
    assert await stored.get() == "loaded"
    for _ in range(3):
        assert (await client.migrate(stored, to=cluster.elsewhere(stored))).moved
        assert await stored.get() == "loaded"
    assert Provider.loads == 1


@grain(kind="attracted")
class Attracted(Grain):
    """Goes to where most of its calls come from."""

    callers: dict[str, int] = soft_state(default_factory=dict)

    async def greet(self, silo: str) -> str:
        self.callers[silo] = self.callers.get(silo, 0) + 1
        best = max(self.callers, key=lambda name: self.callers[name])
        if best != self.silo and self.callers[best] >= 3:
            self.migrate(to=best, reason="optimise")
        return self.silo


@grain(kind="admirer")
class Admirer(Grain):
    async def greet(self, key: str, times: int) -> list[str]:
        return [await self.grain(Attracted, key).greet(self.silo) for _ in range(times)]


async def test_R407_self_optimising_placement_can_be_written_on_this_mechanism(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Attracted, Admirer))
    client = await cluster.client()
    await with_hint(client.grain(Attracted, "k"), "a").greet("a")
    admirer = with_hint(client.grain(Admirer, "k"), "b")
    assert (await admirer.greet("k", 3)) == ["a", "a", "a"]
    await cluster.arrived(client.grain(Attracted, "k"), "b")
    assert (await admirer.greet("k", 2)) == ["b", "b"]


async def test_R408_a_running_grain_moves_and_drops_neither_calls_nor_state(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    running = asyncio.create_task(ledger.write_at("go", "running"))
    await stage.heard("started running")
    moving = asyncio.create_task(client.migrate(ledger, to="b"))
    await cluster.draining(ledger)
    waiting = asyncio.create_task(ledger.write_and_tell("waiting"))
    await cluster.queued(ledger, 1)
    stage.gate("go").open()
    outcome = await moving
    assert outcome.moved
    assert (outcome.source_name, outcome.target_name, outcome.held_calls) == ("a", "b", 1)
    assert (await running, await waiting) == ("a", "b")
    assert await ledger.read() == ["first", "running", "waiting"]


async def test_R409_what_is_handed_over_arrives_and_what_is_not_is_absent(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    await ledger.remark_on("mine")
    assert (await client.migrate(ledger, to="b")).moved
    assert await ledger.read() == ["first"]
    assert await ledger.remarked() == ""


async def test_R410_R457_pending_calls_go_along_in_order_per_caller_and_run_once_at_the_new_place(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start(*ABC, kinds=(Ledger,))
    clients = [await cluster.client(), await cluster.client()]
    ledgers = [client.grain(Ledger, "k") for client in clients]
    await active_at(cluster, ledgers[0], "a")
    running = asyncio.create_task(ledgers[0].write_at("go", "running"))
    await stage.heard("started running")
    pending = [
        asyncio.create_task(ledgers[who].write_and_tell(f"{who}:{number:02}")) for number in range(20) for who in (0, 1)
    ]
    await cluster.queued(ledgers[0], 40)
    moving = asyncio.create_task(clients[0].migrate(ledgers[0], to="b"))
    await cluster.draining(ledgers[0])
    stage.gate("go").open()
    assert (await moving).held_calls == 40
    assert await running == "a"
    assert await asyncio.gather(*pending) == ["b"] * 40
    lines = await ledgers[0].read()
    for who in ("0:", "1:"):
        assert [line for line in lines if line.startswith(who)] == [f"{who}{number:02}" for number in range(20)]
    assert len(lines) == 42


async def test_R411_calls_that_reach_the_old_address_are_forwarded_and_the_callers_cache_is_corrected(
    cluster: Cluster,
) -> None:
    a, _, c = await cluster.start(*ABC, kinds=(Ledger,))
    ledger = a.grain(Ledger, "k")
    await active_at(cluster, ledger, "b")
    believed = a.runtime.cache.get(grain_id(ledger))
    assert believed is not None
    await cluster.silos["b"].migrate(ledger, to="c")
    assert a.runtime.cache.get(grain_id(ledger)) == believed
    assert await ledger.write("after") == 2
    corrected = a.runtime.cache.get(grain_id(ledger))
    assert corrected is not None
    assert corrected.silo == c.address
    assert corrected.epoch > believed.epoch


async def test_R411_order_is_kept_when_some_calls_are_forwarded_and_later_ones_go_direct(cluster: Cluster) -> None:
    a, _, _ = await cluster.start(*ABC, kinds=(Ledger,))
    ledger = a.grain(Ledger, "k")
    await active_at(cluster, ledger, "b")
    for target in islice(cycle(("c", "b")), 6):
        moving = asyncio.create_task(cluster.silos["b"].migrate(ledger, to=target))
        calls: list[asyncio.Task[int]] = []
        while not moving.done():
            calls.append(asyncio.create_task(ledger.write(f"{len(calls):04}")))
            await asyncio.sleep(0.0005)
        assert (await moving).moved
        calls += [asyncio.create_task(ledger.write(f"{len(calls) + number:04}")) for number in range(20)]
        answers = await asyncio.gather(*calls)
        assert answers == sorted(answers)
        assert len(set(answers)) == len(answers)


async def test_R414_a_grain_moves_itself_after_its_turn_with_and_without_a_target(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    assert await ledger.move_to("b") == "a"  # the turn itself ends where it began
    await cluster.arrived(ledger, "b")
    assert await ledger.move_to(None) == "b"
    await cluster.arrived(ledger, "a")
    assert await ledger.where() == "a"
    assert await ledger.read() == ["first"]


@grain(kind="mover")
class Mover(Grain):
    """Moves other grains, and tries to wait for its own move."""

    async def move(self, key: str, to: str | None) -> str:
        outcome = await migrate(self.grain(Ledger, key), to=to, reason="tidy up")
        return f"{outcome.status} {outcome.reason} {outcome.target_name}"

    async def await_own_move(self, to: str) -> str:
        try:
            await self.migrate(to=to)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "it was awaited"

    async def await_own_move_by_reference(self, to: str) -> str:
        return str(await migrate(self.grain(Mover, self.key), to=to))

    async def move_through(self, other: str, to: str) -> str:
        return await self.grain(Mover, other).move_caller(self.key, to)

    async def move_caller(self, caller: str, to: str) -> str:
        return str(await migrate(self.grain(Mover, caller), to=to))

    async def where(self) -> str:
        return self.silo


async def test_R415_a_move_is_ordered_by_a_client_a_silo_and_another_grain_with_target_and_reason(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger, Mover))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    outcome = await client.migrate(ledger, to="b", reason="spring cleaning")
    assert (outcome.status, outcome.reason, outcome.target) == (MoveStatus.MOVED, "spring cleaning", b.address)
    assert (await migrate(ledger, to=a.address)).moved  # by address; the face of the same order
    assert (await b.migrate(GrainId("ledger", "k"), to="b")).moved  # by identity, from any silo
    mover = client.grain(Mover, "m")
    assert await mover.move("k", "a") == "moved tidy up a"
    assert await mover.move("k", None) == "moved tidy up b"
    assert await ledger.read() == ["first"]


async def test_R414_a_turn_that_awaits_its_own_move_is_refused_with_the_reason(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Mover, Ledger))
    client = await cluster.client()
    mover = with_hint(client.grain(Mover, "m"), "a")
    said = await mover.await_own_move("b")
    assert said.startswith("MigrationRefused: ")
    assert "waits for that turn to end" in said
    await cluster.arrived(mover, "b")  # only the wait was refused
    assert "waits for that turn to end" in await mover.await_own_move_by_reference("a")
    assert "waits for that turn to end" in await mover.move_through("n", "a")


async def test_R417_R452_a_kind_that_is_not_migratable_moves_by_force_alone(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Fixed,))
    client = await cluster.client()
    fixed = with_hint(client.grain(Fixed, "k"), "a")
    await fixed.add()
    refused = await client.migrate(fixed, to="b")
    assert (refused.status, cluster.home(fixed)) == (MoveStatus.REFUSED, "a")
    assert "migratable=False" in refused.why
    assert (await client.migrate(fixed, to="b", force=True)).moved
    assert await fixed.add() == 2


@grain(kind="fixed", migratable=False)
class Fixed(Grain):
    count: int = soft_state(default=0)

    async def add(self) -> int:
        self.count += 1
        return self.count


async def test_R417_the_drain_of_a_silo_leaves_no_kind_behind_without_saying_goodbye_to_it(
    cluster: Cluster, stage: Stage
) -> None:
    """An automatic mover does not move what is not migratable: it is deactivated, and its next call starts it anew."""
    await cluster.start("a", "b", kinds=(Fixed,))
    client = await cluster.client()
    fixed = with_hint(client.grain(Fixed, "k"), "a")
    assert await fixed.add() == 1
    await cluster.stop("a")
    assert await fixed.add() == 1
    assert cluster.home(fixed) == "b"


async def test_R418_a_move_changes_the_row_by_compare_and_set_from_the_sources_entry(cluster: Cluster) -> None:
    _, b = await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    before = await cluster.entry(ledger)
    outcome = await client.migrate(ledger, to="b")
    after = await cluster.entry(ledger)
    assert before is not None
    assert after is not None
    assert after.silo == b.address
    assert after.activation != before.activation
    assert after.epoch == outcome.epoch > before.epoch


async def test_R418_of_two_movers_at_once_one_wins_and_both_are_told_the_same(cluster: Cluster) -> None:
    a, b, c = await cluster.start(*ABC, kinds=(Ledger,))
    ledger = a.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    first, second = await asyncio.gather(b.migrate(ledger, to="b"), c.migrate(ledger, to="c"))
    winner = cluster.home(ledger)
    if first.moved and second.moved and first.epoch != second.epoch:  # one after the other
        assert {first.target_name, second.target_name} == {"b", "c"}
    else:
        assert first.target_name == second.target_name == winner
    assert await ledger.read() == ["first"]


@pytest.mark.in_memory
async def test_R460_no_row_is_deleted_by_a_move(stage: Stage) -> None:
    stand = MemoryStand()
    cluster = Cluster(stand)
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    running = asyncio.create_task(ledger.write_at("go", "running"))
    await stage.heard("started running")
    waiting = asyncio.create_task(ledger.write("waiting"))
    moving = asyncio.create_task(client.migrate(ledger, to="b"))
    await cluster.draining(ledger)
    stage.gate("go").open()
    assert (await moving).moved
    assert (await running, await waiting) == ("a", 3)
    assert (await client.migrate(ledger, to="c")).moved
    assert "register" in stand.directory_calls
    assert "unregister" not in stand.directory_calls
    await cluster.close()


@grain(kind="refuser")
class Refuser(Grain):
    """Cannot be dehydrated where its key says so."""

    count: int = soft_state(default=0)

    async def add(self) -> int:
        self.count += 1
        return self.count

    def on_dehydrate(self, context: DehydrateContext) -> None:
        if self.key == "bad":
            raise RuntimeError("not me")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Nothing came."""


async def test_R465_a_batch_has_an_outcome_per_grain_and_one_bad_grain_fails_nobody_else(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Refuser,))
    client = await cluster.client()
    keys = [f"k{number}" for number in range(100)] + ["bad"]
    grains = [client.grain(Refuser, key) for key in keys]
    assert set(await asyncio.gather(*(with_hint(each, "a").add() for each in grains))) == {1}
    outcomes = await client.migrate_many([*grains, client.grain(Refuser, "absent")], to="b")
    assert [outcome.grain.key for outcome in outcomes] == [*keys, "absent"]
    assert {outcome.status for outcome in outcomes[:100]} == {MoveStatus.MOVED}
    assert [outcome.status for outcome in outcomes[100:]] == [MoveStatus.ABORTED, MoveStatus.NOT_ACTIVE]
    assert "not me" in outcomes[100].why
    assert set(await asyncio.gather(*(each.add() for each in grains))) == {2}
    assert cluster.home(grains[100]) == "a"


@grain(kind="moves.lingering")
class Lingering(Grain):
    """Takes its time to deactivate."""

    async def here(self) -> None: ...

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"on_deactivate {reason}")
        await gate("deactivated")
        say("deactivated")


async def test_the_last_silo_lets_all_grains_deactivate_at_once_and_none_waits_for_another(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", kinds=(Lingering,))
    client = await cluster.client()
    for key in ("x", "y", "z"):
        await client.grain(Lingering, key).here()
    stopping = asyncio.create_task(cluster.stop("a"))
    await stage.heard("on_deactivate shutting_down", times=3)  # while the first has not ended
    stage.gate("deactivated").open()
    await stopping
    assert stage.lines.count("deactivated") == 3


async def test_R470_a_silo_that_stops_migrates_its_grains_with_their_state(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Witness,))
    client = await cluster.client()
    grains = [client.grain(Witness, f"k{number}") for number in range(10)]
    for each in grains:
        await with_hint(each, "a").turn()
    await cluster.stop("a")
    assert stage.lines.count(f"on_migrating {MoveReason.SILO_STOPPING} b") == 10
    assert stage.lines.count("on_deactivate migrating") == 10
    assert stage.lines.count("on_activate migration") == 10
    assert {await each.count() for each in grains} == {1}
    assert {cluster.home(each) for each in grains} == {"b"}


async def test_R470_a_silo_that_stops_hands_over_grains_that_are_being_called(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledgers = [client.grain(Ledger, f"k{number}") for number in range(5)]
    for ledger in ledgers:
        await active_at(cluster, ledger, "a")
    goes_on = True
    answers: dict[Ledger, list[int]] = {ledger: [] for ledger in ledgers}

    async def call(ledger: Ledger) -> None:
        while goes_on:
            answers[ledger].append(await ledger.write("again"))

    callers = [asyncio.create_task(call(ledger)) for ledger in ledgers]
    await cluster.stop("a")
    goes_on = False
    await asyncio.gather(*callers)
    for ledger in ledgers:
        assert answers[ledger] == list(range(2, len(answers[ledger]) + 2))


@pytest.mark.in_memory
async def test_R470_a_silo_that_stops_finds_another_home_for_what_one_silo_does_not_take(stage: Stage) -> None:
    """A link that fails for a moment costs no state: there are other silos, and there is time left."""
    stand = FaultyStand()
    cluster = Cluster(stand)
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledgers = [client.grain(Ledger, f"k{number}") for number in range(10)]
    for ledger in ledgers:
        await active_at(cluster, ledger, "a")
    stand.network.cut("a", "b")
    await cluster.stop("a")
    stand.network.heal("a", "b")
    assert [await ledger.read() for ledger in ledgers] == [["first"]] * 10
    assert {cluster.home(ledger) for ledger in ledgers} == {"c"}
    await cluster.close()


async def test_R471_an_outcome_tells_pause_bytes_held_calls_and_between_which_silos(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    outcome = await client.migrate(ledger, to="b", reason="why not")
    assert (outcome.grain, outcome.source, outcome.target) == (grain_id(ledger), a.address, b.address)
    assert 0 < outcome.pause_s < 1
    assert 10 < outcome.payload_bytes < 1000
    assert (outcome.reason, outcome.why) == ("why not", "")
    assert str(outcome).startswith("ledger/k moved from a to b: pause ")


async def test_R478_a_move_to_where_it_cannot_go_is_refused_with_the_reason_and_costs_nothing(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Witness,))
    await cluster.start("other", kinds=(Ledger,))
    client = await cluster.client()
    grain_here = with_hint(client.grain(Witness, "k"), "a")
    await grain_here.turn()
    here = await client.migrate(grain_here, to="a")
    unknown = await client.migrate(grain_here, to="nowhere")
    incompatible = await client.migrate(grain_here, to="other")
    assert {here.status, unknown.status, incompatible.status} == {MoveStatus.REFUSED}
    assert here.why == "it is already there"
    assert unknown.why == "no living silo is called nowhere (known: a, b, other)"
    assert incompatible.why == "other does not host grains of kind 'witness'"
    assert stage.lines == ["constructor", "on_activate call", "turn"]


async def test_R478_a_move_to_a_silo_that_is_leaving_is_refused_with_the_reason(cluster: Cluster, stage: Stage) -> None:
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    busy, ledger = client.grain(Ledger, "busy"), client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    running = asyncio.create_task(with_hint(busy, "b").write_at("go", "running"))
    await stage.heard("started running")
    stopping = asyncio.create_task(cluster.silos["b"].drain_and_stop())
    await cluster.draining(busy)
    outcome = await cluster.silos["a"].migrate(ledger, to="b")
    assert outcome.status is MoveStatus.REFUSED
    assert "leaving" in outcome.why
    stage.gate("go").open()
    await running
    await stopping
    del cluster.silos["b"]


async def test_a_grain_that_is_not_active_is_not_moved_and_not_activated(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    outcome = await client.migrate(client.grain(Ledger, "k"), to="a")
    assert outcome.status is MoveStatus.NOT_ACTIVE
    assert not cluster.is_active(client.grain(Ledger, "k"))
    assert await cluster.entry(client.grain(Ledger, "k")) is None


@grain(kind="hesitant")
class Hesitant(Grain):
    """Stays in `on_deactivate` until the test lets it go."""

    count: int = soft_state(default=0)

    async def add(self) -> int:
        self.count += 1
        return self.count

    async def add_at(self, gate_name: str) -> int:
        say(f"at {gate_name}")
        await gate(gate_name)
        return await self.add()

    async def on_deactivate(self) -> None:
        say("deactivating")
        await gate("deactivated")

    async def on_activate(self) -> None:
        say(f"active on {self.silo}")


async def test_R479_two_orders_coalesce_and_the_last_target_wins_while_the_grain_drains(
    cluster: Cluster, stage: Stage
) -> None:
    a, _, c = await cluster.start(*ABC, kinds=(Hesitant,))
    stage.gate("deactivated").open()
    hesitant = with_hint(a.grain(Hesitant, "k"), "a")
    running = asyncio.create_task(hesitant.add_at("go"))
    await stage.heard("at go")
    first = asyncio.create_task(a.migrate(hesitant, to="b"))
    await cluster.draining(hesitant)
    second = asyncio.create_task(a.migrate(hesitant, to="c"))
    await cluster.seen(lambda: cluster.activation(hesitant).move.target == c.address)
    stage.gate("go").open()
    assert (await first) == (await second)
    assert (await first).target_name == cluster.home(hesitant) == "c"
    assert await running == 1
    assert await hesitant.add() == 2
    assert stage.lines.count("deactivating") == 1


async def test_R479_once_the_grain_was_told_to_deactivate_a_second_order_joins_the_first(
    cluster: Cluster, stage: Stage
) -> None:
    a, _, _ = await cluster.start(*ABC, kinds=(Hesitant,))
    hesitant = with_hint(a.grain(Hesitant, "k"), "a")
    await hesitant.add()
    first = asyncio.create_task(a.migrate(hesitant, to="b"))
    await stage.heard("deactivating")
    second = a.migrate(hesitant, to="c")
    second_task = asyncio.create_task(second)
    await asyncio.sleep(0.01)
    stage.gate("deactivated").open()
    assert (await first) == (await second_task)
    assert (await first).target_name == "b"
    assert stage.lines.count("deactivating") == 1


async def test_R472_the_target_activates_only_after_the_sources_on_deactivate_has_ended(
    cluster: Cluster, stage: Stage
) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Hesitant,))
    hesitant = with_hint(a.grain(Hesitant, "k"), "a")
    await hesitant.add()
    moving = asyncio.create_task(a.migrate(hesitant, to="b"))
    await stage.heard("deactivating")
    called = asyncio.create_task(hesitant.add())
    await cluster.seen(lambda: a.runtime.catalog.get(grain_id(hesitant)))
    assert "active on b" not in stage.lines
    entry = await cluster.entry(hesitant)
    assert entry is not None
    assert entry.silo == a.address
    stage.gate("deactivated").open()
    assert (await moving).moved
    assert await called == 2
    assert stage.lines == ["active on a", "deactivating", "active on b"]


async def test_soft_state_of_a_mebibyte_moves(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    large = "x" * 2**20
    await with_hint(ledger, "a").write(large)
    outcome = await client.migrate(ledger, to="b")
    assert outcome.moved
    assert outcome.payload_bytes > 2**20
    assert await ledger.read() == [large]


async def test_soft_state_beyond_the_bound_is_refused_before_the_grain_stops(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Ledger,), migration=MigrationSettings(payload_bytes_max=1000))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await with_hint(ledger, "a").write("x" * 2000)
    running = asyncio.create_task(ledger.write_at("go", "running"))
    await stage.heard("started running")
    outcome = await client.migrate(ledger, to="b")  # answered though a turn runs: nothing was stopped
    assert outcome.status is MoveStatus.REFUSED
    assert "1000" in outcome.why
    stage.gate("go").open()
    assert await running == "a"
    assert await ledger.write("more") == 3


@grain(kind="rover")
class Rover(Grain):
    async def on_activate(self) -> None:
        say(f"rover on {self.silo}")
        await gate("rover ready")

    async def where(self) -> str:
        return self.silo


async def test_a_move_ordered_while_the_grain_is_being_activated_waits_for_that(cluster: Cluster, stage: Stage) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Rover,))
    rover = with_hint(a.grain(Rover, "k"), "a")
    called = asyncio.create_task(rover.where())
    await stage.heard("rover on a")
    moving = asyncio.create_task(a.migrate(rover, to="b"))
    await cluster.seen(lambda: a.runtime.moves.leaving_count)
    stage.gate("rover ready").open()
    assert (await moving).moved
    assert await called in ("a", "b")
    assert await rover.where() == "b"


@pytest.mark.in_memory
async def test_calls_that_wait_through_many_moves_in_a_row_are_all_answered_in_order(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start(*ABC, kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await active_at(cluster, ledger, "a")
    calls = [asyncio.create_task(ledger.write_slowly(str(number), 0.1)) for number in range(30)]
    moves = 0
    for target in cycle(("b", "c", "a")):
        if all(call.done() for call in calls):
            break
        moves += (await client.migrate(ledger, to=target)).moved
    assert await asyncio.gather(*calls) == list(range(2, 32))
    assert moves > 10  # far more than one call may be forwarded on its way to its grain
