"""Persistent state when the storage fails, when others write, and when the grain is replaced or moved meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from silo.activation.turn_context import TurnContext, current_turn
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import (
    ActivationFailed,
    GrainMoved,
    NestedCallFailed,
    OutcomeUnknown,
    SiloUnavailable,
    StorageConflict,
    StorageOutcomeUnknown,
    StorageUnavailable,
)
from silo.grain import Grain, always_interleave, grain, soft_state
from silo.host import Silo
from silo.kinds import kind_of
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.outcome import MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.persistence.contract import StateBody, StoredState
from silo.persistence.declaration import persistent
from silo.persistence.grain_states import GrainStates, StorageParts
from silo.persistence.memory_storage import Hook, MemoryStorage, StorageCall
from silo.persistence.persistent import Persistent
from silo.reference import grain_id, with_hint, with_timeout
from silo.serialization.registry import TypeRegistry
from silo.serialization.serializer import Serializer
from silo.settings import ActivationSettings
from silo.testing.virtual_time import run
from tests.cluster.stage import Stage, gate, say
from tests.support.memory_cluster import Scene, told

STORAGE_DELAY_S = 0.02


@grain(kind="account")
class Account(Grain):
    """Counts what was paid in, and says each time how much that is by now."""

    total: Persistent[int] = persistent(int)

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"deactivated: {reason}")

    async def pay(self, amount: int) -> int:
        self.total.value += amount
        await self.total.write()
        return self.total.value

    async def pay_and_go_on(self, amount: int) -> str:
        """Handles what goes wrong, and answers as if nothing had."""
        self.total.value += amount
        try:
            await self.total.write()
        except (StorageOutcomeUnknown, StorageConflict, StorageUnavailable) as error:
            return type(error).__name__
        return "paid"

    async def pay_at(self, gate_name: str, amount: int) -> int:
        say(f"at {gate_name}")
        await gate(gate_name)
        return await self.pay(amount)

    async def pay_twice(self, amount: int) -> None:
        """Go on after a failure."""
        for _ in range(2):
            try:
                await self.pay(amount)
            except (StorageConflict, StorageOutcomeUnknown) as error:
                say(type(error).__name__)

    async def look(self) -> int:
        return self.total.value


def once(error: Exception, when: StorageCall = "write") -> Hook:
    """The first such call fails so."""
    left = [error]

    async def fail(call: StorageCall) -> None:
        if call == when and left:
            raise left.pop()

    return fail


def held_at(stage: Stage, name: str, when: StorageCall = "write") -> Hook:
    """Such calls wait on their way until a gate opens."""

    async def hold(call: StorageCall) -> None:
        if call == when:
            say(f"{call} on its way")
            await stage.gate(name).passed()

    return hold


def stored(scene: Scene, account: Any, name: str = "total") -> StoredState:
    return scene.stand.storage_rows.state(grain_id(account), name)


def put(scene: Scene, account: Any, value: int, name: str = "total") -> None:
    """Write behind everybody's back."""
    body, codec = scene.silo("a").runtime.codec.encode(value)
    scene.stand.storage_rows.put(
        grain_id(account), name, StoredState("etag of somebody else", StateBody(1, codec, body))
    )


def value_of(scene: Scene, account: Any, name: str = "total") -> object:
    body = stored(scene, account, name).body
    assert body is not None
    return scene.silo("a").runtime.codec.decode(body.body, body.codec)


def activation_id(scene: Scene, account: Any) -> str:
    return scene.cluster.activation(account).activation_id


@told
async def test_S074_after_a_write_with_unknown_outcome_the_next_call_sees_what_is_stored(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    acknowledged = 0
    for error_at in (scene.stand.storage_before, scene.stand.storage_after):
        for _ in range(10):
            if await account.pay_and_go_on(1) == "paid":
                acknowledged += 1
        first = activation_id(scene, account)
        error_at["a"] = once(StorageOutcomeUnknown("the answer was lost"))
        assert await account.pay_and_go_on(1) == "StorageOutcomeUnknown"
        unknown = 1 if error_at is scene.stand.storage_after else 0
        assert await account.look() == acknowledged + unknown == value_of(scene, account)
        acknowledged += unknown
        assert activation_id(scene, account) != first
        assert await account.pay(1) == acknowledged + 1
        acknowledged += 1


@told
async def test_S074_the_error_says_that_the_write_may_have_been_carried_out(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    await account.pay(1)
    scene.stand.storage_after["a"] = once(StorageOutcomeUnknown("the answer was lost"))
    with pytest.raises(NestedCallFailed, match=r"StorageOutcomeUnknown: the state 'total' of account/x may have been"):
        await account.pay(1)
    await scene.stage.heard("deactivated: stale_state")


@told
async def test_a_failed_read_is_an_error_and_never_taken_for_no_record(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    await account.pay(5)
    home = scene.cluster.home(account)
    scene.cluster.activation(account).request_deactivation()
    await scene.cluster.seen(lambda: not scene.cluster.is_active(account))

    async def fail(call: StorageCall) -> None:
        raise StorageUnavailable("the storage is away")

    scene.stand.storage_before = {"a": fail, "b": fail}
    for _ in range(3):
        with pytest.raises(ActivationFailed, match="the storage is away"):
            await account.look()
        assert await scene.cluster.entry(account) is None
    scene.stand.storage_before.clear()
    assert await account.look() == 5, home


@told
async def test_a_pending_read_is_waited_for_and_never_taken_for_no_record(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    client = await scene.client()
    account = client.grain(Account, "x")
    await account.pay(5)
    scene.cluster.activation(account).request_deactivation()
    await scene.cluster.seen(lambda: not scene.cluster.is_active(account))
    scene.stand.storage_before["a"] = held_at(scene.stage, "read", "read")
    looks = [asyncio.create_task(account.look()) for _ in range(3)]
    await scene.stage.heard("read on its way")
    await asyncio.sleep(2.0)
    assert not any(look.done() for look in looks)
    scene.stage.gate("read").open()
    assert await asyncio.gather(*looks) == [5, 5, 5]


@told
async def test_a_read_that_takes_longer_than_an_activation_may_fails_it(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,), activation=ActivationSettings(activation_timeout_s=3.0))
    account = (await scene.client()).grain(Account, "x")
    scene.stand.storage_before["a"] = held_at(scene.stage, "read", "read")
    with pytest.raises(ActivationFailed, match="TimeoutError"):
        await account.look()


@told
async def test_a_write_that_was_not_carried_out_leaves_everything_as_it_is(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    await account.pay(5)
    first = activation_id(scene, account)
    scene.stand.storage_before["a"] = once(StorageUnavailable("the storage is away"))
    with pytest.raises(StorageUnavailable):
        await account.pay(1)
    assert await account.look() == 6
    assert value_of(scene, account) == 5
    assert await account.pay(1) == 7
    assert activation_id(scene, account) == first


@grain(kind="stubborn")
class Stubborn(Grain):
    """Writes when it is activated, and takes no notice of what comes of it."""

    total: Persistent[int] = persistent(int)

    async def on_activate(self, reason: ActivationReason) -> None:
        self.total.value += 1
        try:
            await self.total.write()
        except StorageConflict:
            say("conflict in on_activate")

    async def look(self) -> int:
        return self.total.value


@told
async def test_a_conflict_in_on_activate_ends_the_activation_even_if_nobody_heeds_it(scene: Scene) -> None:
    await scene.start("a", kinds=(Stubborn,))
    stubborn = (await scene.client()).grain(Stubborn, "s")

    async def write_first(call: StorageCall) -> None:
        if call == "write":
            scene.stand.storage_before.clear()
            put(scene, stubborn, 100)

    scene.stand.storage_before["a"] = write_first
    assert await stubborn.look() == 101 == value_of(scene, stubborn)
    assert scene.stage.lines == ["conflict in on_activate"]


@grain(kind="relay")
class Relay(Grain):
    """Passes payments on, and lets errors through."""

    async def pay(self, way: list[str], amount: int) -> int:
        if way:
            return await self.grain(Relay, way[0]).pay(way[1:], amount)
        return await self.grain(Account, "x").pay_at("paying", amount)

    async def here(self) -> None:
        """Be active."""


@told
async def test_S075_a_conflict_ends_one_activation_and_costs_no_innocent_call(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Account, Relay))
    client = await scene.client()
    account, relays = client.grain(Account, "x"), [client.grain(Relay, key) for key in "AB"]
    await account.pay(1)
    for relay in relays:
        await relay.here()
    before = [activation_id(scene, each) for each in (*relays, account)]
    paying = asyncio.create_task(relays[0].pay(["B"], 10))
    await scene.stage.heard("at paying")
    queued = [asyncio.create_task(account.pay(1)) for _ in range(50)]
    await scene.cluster.queued(account, 50)
    put(scene, account, 1000)
    scene.stage.gate("paying").open()
    with pytest.raises(StorageConflict, match=r"'total' of account/x was not written: etag etag of somebody else is"):
        await paying
    assert sorted(await asyncio.gather(*queued)) == list(range(1001, 1051))
    after = [activation_id(scene, each) for each in (*relays, account)]
    assert after[:2] == before[:2]
    assert after[2] != before[2]


@told
async def test_after_a_conflict_nothing_more_is_written_by_that_activation(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    await account.pay(1)
    put(scene, account, 100)
    scene.stand.storage_calls.clear()
    await account.pay_twice(10)
    assert scene.stage.lines.count("StorageConflict") == 2
    assert scene.stand.storage_calls == ["write"]
    assert await account.look() == 100
    await scene.stage.heard("deactivated: stale_state")


@told
async def test_S078_a_late_write_of_a_replaced_activation_is_refused_and_its_successor_undisturbed(
    scene: Scene,
) -> None:
    for iteration in range(10):
        await _late_write(scene, f"x{iteration}")


async def _late_write(scene: Scene, key: str) -> None:
    old, new = (f"{key}-old", f"{key}-new")
    (silo, other) = await scene.start(old, new, kinds=(Account,))
    await with_hint(silo.grain(Account, key), old).pay(1)
    assert scene.cluster.home(silo.grain(Account, key)) == old
    scene.stand.storage_before[old] = held_at(scene.stage, f"{key} late")
    on_its_way = scene.stage.lines.count("write on its way") + 1
    late = asyncio.create_task(with_timeout(silo.grain(Account, key), 100.0).pay(100))
    await scene.stage.heard("write on its way", on_its_way)
    scene.stand.cut_lease(old)  # it will be declared dead, and not know
    await scene.cluster.seen(lambda: other.view.is_dead(silo.address))
    account = other.grain(Account, key)
    successor = await account.look()
    first = other.runtime.catalog.get(grain_id(account))
    assert successor == 1
    assert await account.pay(1) == 2
    assert await account.pay(1) == 3
    scene.stage.gate(f"{key} late").open()
    asked = len(scene.stand.storage_calls)
    assert await account.pay(1) == 4
    assert len(scene.stand.storage_calls) == asked + 1
    assert other.runtime.catalog.get(grain_id(account)) is first
    body = stored(scene, account).body
    assert body is not None
    assert other.runtime.codec.decode(body.body, body.codec) == 4
    late.cancel()
    scene.stand.without_table.discard(old)
    await scene.cluster.kill(old)
    await scene.cluster.kill(new)
    await asyncio.gather(late, return_exceptions=True)


@told
async def test_S078_what_arrives_after_the_successor_has_only_read_is_refused_too(scene: Scene) -> None:
    silo, other = await scene.start("a", "b", kinds=(Account,))
    await with_hint(silo.grain(Account, "x"), "a").look()  # so that the first write of all is the one that is late
    scene.stand.storage_before["a"] = held_at(scene.stage, "late")
    late = asyncio.create_task(with_timeout(silo.grain(Account, "x"), 100.0).pay(100))
    await scene.stage.heard("write on its way")
    scene.stand.cut_lease("a")
    await scene.cluster.seen(lambda: other.view.is_dead(silo.address))
    account = other.grain(Account, "x")
    assert await account.look() == 0
    scene.stage.gate("late").open()
    await asyncio.sleep(1.0)
    assert stored(scene, account) == StoredState()
    assert await account.pay(1) == 1
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)


@grain(kind="tally", reentrant=True)
class Tally(Grain):
    """Turns of which many run at once, and write."""

    counts: Persistent[dict[str, int]] = persistent(dict)

    async def add(self, name: str, pause_s: float) -> None:
        counts = self.counts.value
        counts[name] = counts.get(name, 0) + 1
        await asyncio.sleep(pause_s)
        await self.counts.write()

    @always_interleave
    async def tick(self, pause_s: float) -> int:
        """Reads, modifies, writes, as a timer or a reminder would."""
        seen = self.counts.value.get("tick", 0)
        self.counts.value["tick"] = seen + 1
        await self.counts.write()
        await asyncio.sleep(pause_s)
        return self.counts.value["tick"]

    async def look(self) -> dict[str, int]:
        return self.counts.value


@pytest.mark.parametrize("seed", range(20))
def test_S077_whatever_turns_interleave_memory_and_storage_agree_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)

    async def story(scene: Scene) -> None:
        async def slow(call: StorageCall) -> None:
            await asyncio.sleep(rng.uniform(0.0, 2 * STORAGE_DELAY_S))

        await scene.start("a", kinds=(Tally,))
        scene.stand.storage_before["a"] = scene.stand.storage_after["a"] = slow
        tally = (await scene.client()).grain(Tally, "t")
        calls: list[Awaitable[Any]] = []
        wanted: dict[str, int] = {}
        for _ in range(40):
            name = rng.choice(["one", "two", "tick"])
            wanted[name] = wanted.get(name, 0) + 1
            pause_s = rng.choice([0.0, STORAGE_DELAY_S])
            calls.append(tally.tick(pause_s) if name == "tick" else tally.add(name, pause_s))
        await asyncio.gather(*calls)
        assert await tally.look() == wanted == value_of(scene, tally, "counts")

    told(story)()


@told
async def test_a_write_goes_to_its_end_when_the_turn_that_waits_for_it_is_cancelled(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    account = (await scene.client()).grain(Account, "x")
    await account.pay(1)
    first = activation_id(scene, account)
    scene.stand.storage_after["a"] = held_at(scene.stage, "answer")
    paying = asyncio.create_task(account.pay(10))
    await scene.stage.heard("write on its way")
    paying.cancel()
    await asyncio.gather(paying, return_exceptions=True)
    scene.stage.gate("answer").open()
    assert await account.pay(100) == 111
    assert value_of(scene, account) == 111
    assert activation_id(scene, account) == first


@told
async def test_a_fenced_silo_writes_nothing_until_its_lease_is_renewed(scene: Scene) -> None:
    (silo,) = await scene.start("a", kinds=(Account,))
    account = silo.grain(Account, "x")
    await account.pay(1)
    paying = asyncio.create_task(with_timeout(account, 100.0).pay_at("paying", 10))
    await scene.stage.heard("at paying")
    scene.stand.cut_lease("a")
    await scene.cluster.seen(lambda: not silo.runtime.membership.right.is_held())
    scene.stand.storage_calls.clear()
    scene.stage.gate("paying").open()
    await asyncio.sleep(3.0)
    assert scene.stand.storage_calls == []
    scene.stand.mend_leases()
    assert await paying == 11
    assert value_of(scene, account) == 11


class _Fenced:
    """A right that does not come back."""

    deadline = 0.0

    @property
    def clock(self) -> Callable[[], float]:
        return lambda: 1.0

    def is_held(self) -> bool:
        return False

    async def held(self) -> None:
        await asyncio.Event().wait()

    def is_leased(self) -> bool:
        return False

    async def unleased(self) -> None:
        """It is."""

    async def leased(self) -> None:
        await asyncio.Event().wait()


class _Holder:
    id = GrainId("account", "x")
    epoch = 1
    activation_id = "a1"

    def check_alive(self) -> None:
        """It is."""

    def request_deactivation(self) -> None:
        raise AssertionError("there is no reason to")


def test_a_turn_waits_no_longer_than_its_deadline_for_the_right_to_write() -> None:
    async def story() -> None:
        loop, codec = asyncio.get_running_loop(), Serializer(TypeRegistry())
        account = Account()
        storage = MemoryStorage()
        fields = kind_of(Account).persistent
        states = GrainStates(_Holder(), account, fields, StorageParts(storage, codec, _Fenced(), 1000, lambda: "e1"))
        fields[0].of(account).restore("", False, 7)
        current_turn.set(TurnContext(cast("Any", None), None, loop.time() + 5.0))
        with pytest.raises(StorageUnavailable, match="lease"):
            await account.total.write()
        assert loop.time() == pytest.approx(5.0, abs=0.1)
        assert states.stale == ""
        assert account.total.value == 7
        assert storage.rows.state(_Holder.id, "total") == StoredState()

    run(story)


@told
async def test_what_another_release_has_stored_fails_the_activation_and_is_left_alone(scene: Scene) -> None:
    await scene.start("a", kinds=(Account,))
    client = await scene.client()
    for key, body in {
        "newer": StateBody(2, 1, b"\x01"),
        "damaged": StateBody(1, 1, b"\xc1"),
        "pickled": StateBody(1, 2, b"\x80\x05K\x01."),
    }.items():
        account = client.grain(Account, key)
        there = StoredState("e1", body)
        scene.stand.storage_rows.put(grain_id(account), "total", there)
        with pytest.raises(ActivationFailed, match="StoredStateUnreadable"):
            await account.pay(1)
        assert stored(scene, account) == there


# ---------------------------------------------------------------------------------------------------------------- moves


@grain(kind="mover")
class Mover(Grain):
    """Moves, or not, as told."""

    total: Persistent[int] = persistent(int)
    fails_at_target: bool = soft_state(default=False)
    writes_at_target: bool = soft_state(default=False)
    refuses: bool = soft_state(default=False)

    def __init__(self) -> None:
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    async def on_activate(self, reason: ActivationReason) -> None:
        if reason is ActivationReason.MIGRATION and self.fails_at_target:
            if self.writes_at_target:
                self.total.value += 1000
                await self.total.write()
            raise RuntimeError("not here")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        if self.refuses:
            raise RuntimeError("not now")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Nothing beside the states."""

    async def be(self, *, fails_at_target: bool = False, writes_at_target: bool = False, refuses: bool = False) -> None:
        self.fails_at_target, self.writes_at_target, self.refuses = fails_at_target, writes_at_target, refuses

    async def add(self, amount: int) -> int:
        self.total.value += amount
        await self.total.write()
        return self.total.value

    async def add_unsaved(self, amount: int) -> None:
        self.total.value += amount

    async def look(self) -> int:
        return self.total.value

    async def write_again_and_again(self) -> None:
        async def write() -> None:
            try:
                while not self.stopped:
                    self.total.value += 1
                    await self.total.write()
                    await asyncio.sleep(0.0005)
            except (GrainMoved, StorageConflict) as error:
                say(f"refused: {type(error).__name__}")

        self.stopped = False
        self.task = asyncio.create_task(write())

    async def stop_writing(self) -> None:
        self.stopped = True
        if self.task is not None:
            await self.task

    async def write_from_a_task(self) -> None:
        async def write() -> None:
            try:
                await self.total.write()
            except (GrainMoved, StorageConflict) as error:
                say(f"refused: {type(error).__name__}")

        self.task = asyncio.create_task(write())


@told
async def test_an_aborted_move_keeps_the_state_and_reads_nothing(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    await mover.add(1)
    await mover.add_unsaved(10)
    await mover.be(refuses=True)
    scene.stand.storage_calls.clear()
    moved = await client.migrate(mover, to=scene.cluster.elsewhere(mover))
    assert moved.status is MoveStatus.ABORTED, moved
    assert await mover.look() == 11
    assert scene.stand.storage_calls == []
    assert await mover.add(100) == 111


@told
async def test_a_grain_that_is_given_back_has_what_it_wrote_at_the_target(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    await mover.add(1)
    home = scene.cluster.home(mover)
    await mover.add_unsaved(10)
    await mover.be(fails_at_target=True, writes_at_target=True)
    moved = await client.migrate(mover, to=scene.cluster.elsewhere(mover))
    assert not moved.moved
    assert await mover.look() == 2011 == value_of(scene, mover)
    assert scene.cluster.home(mover) == home
    assert await mover.add(1) == 2012


@told
async def test_a_grain_that_is_given_back_keeps_what_it_had_not_saved_where_the_target_wrote_nothing(
    scene: Scene,
) -> None:
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    await mover.add(1)
    await mover.add_unsaved(10)
    await mover.be(fails_at_target=True)
    assert not (await client.migrate(mover, to=scene.cluster.elsewhere(mover))).moved
    assert await mover.look() == 11
    assert await mover.add(1) == 12 == value_of(scene, mover)


@told
async def test_a_grain_that_is_given_back_while_the_storage_is_away_is_made_anew_when_it_is_there_again(
    scene: Scene,
) -> None:
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    await mover.add(1)
    home = scene.cluster.home(mover)
    first = activation_id(scene, mover)
    await mover.be(fails_at_target=True, writes_at_target=True)
    scene.stand.storage_before[home] = once(StorageUnavailable("away"), "read")
    assert not (await client.migrate(mover, to=scene.cluster.elsewhere(mover))).moved
    assert await mover.add(1) == 2002 == value_of(scene, mover)
    assert activation_id(scene, mover) != first


@told
async def test_what_writes_in_the_background_is_lost_by_no_move(scene: Scene) -> None:
    """Refused once the state was handed over: what it wrote then would be unknown to the grain at its new place."""
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    moves = 0
    for _ in range(40):
        await mover.write_again_and_again()
        moves += (await client.migrate(mover, to=scene.cluster.elsewhere(mover))).moved
        await mover.stop_writing()
        assert await mover.add(1) == value_of(scene, mover)
    assert moves > 4
    assert "refused: GrainMoved" in scene.stage.lines
    assert "refused: StorageConflict" not in scene.stage.lines


@told
async def test_a_write_that_a_turn_has_left_running_keeps_the_grain_where_it_is(scene: Scene) -> None:
    """What is still on its way when the grain has moved would be lost, or replace what came after it."""
    await scene.start("a", "b", kinds=(Mover,))
    client = await scene.client()
    mover = client.grain(Mover, "m")
    await mover.add(1)
    home = scene.cluster.home(mover)
    scene.stand.storage_before[home] = held_at(scene.stage, "left running")
    await mover.write_from_a_task()
    await scene.stage.heard("write on its way")
    moved = await client.migrate(mover, to=scene.cluster.elsewhere(mover))
    assert moved.status is MoveStatus.ABORTED, moved
    assert "left running" in moved.why
    scene.stage.gate("left running").open()
    assert await mover.add(1) == 2
    assert (await client.migrate(mover, to=scene.cluster.elsewhere(mover))).moved
    assert await mover.add(1) == 3


@grain(kind="farewell")
class Farewell(Grain):
    """Saves when it hears of its move."""

    total: Persistent[int] = persistent(int)

    async def on_migrating(self, notice: MigrationNotice) -> None:
        try:
            await self.total.write()
        except StorageConflict:
            say("conflict on leaving")

    async def add(self, amount: int) -> int:
        self.total.value += amount
        await self.total.write()
        return self.total.value


@told
async def test_a_grain_whose_state_is_stale_is_made_anew_and_not_moved(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Farewell,))
    client = await scene.client()
    farewell = client.grain(Farewell, "f")
    await farewell.add(1)
    first = activation_id(scene, farewell)
    put(scene, farewell, 50)
    moved = await client.migrate(farewell, to=scene.cluster.elsewhere(farewell))
    assert scene.stage.lines == ["conflict on leaving"]
    assert moved.status is MoveStatus.ABORTED, moved
    assert "given up" in moved.why
    assert await farewell.add(1) == 51
    assert activation_id(scene, farewell) != first


@told
async def test_a_stale_activation_serves_nobody_while_a_target_is_asked_to_take_it(scene: Scene) -> None:
    """Found by seed: during the question the grain is open, and could not be deactivated since it was to move."""
    await scene.start("a", "b", kinds=(Mover,))
    mover = scene.silo("a").grain(Mover, "m")
    await with_hint(mover, "a").add(1)
    first = activation_id(scene, mover)
    scene.stand.storage_before["a"] = held_at(scene.stage, "left running")
    await mover.write_from_a_task()
    await scene.stage.heard("write on its way")
    put(scene, mover, 50)
    scene.stand.network.cut("a", "b")
    moving = asyncio.create_task(scene.silo("a").migrate(mover, to="b"))
    await scene.cluster.seen(lambda: scene.cluster.activation(mover).move is not None)
    scene.stage.gate("left running").open()
    await scene.stage.heard("refused: StorageConflict")
    moved = await moving
    assert moved.status is MoveStatus.REFUSED, moved
    assert "given up" in moved.why
    scene.stand.network.heal()
    assert await mover.add(1) == 51
    assert activation_id(scene, mover) != first


@grain(kind="interrupted", on_busy="interrupt")
class Interrupted(Grain):
    """Is interrupted where it writes."""

    total: Persistent[int] = persistent(int)

    async def add(self, amount: int) -> int:
        self.total.value += amount
        await self.total.write()
        return self.total.value


@told
async def test_a_turn_that_is_interrupted_in_a_write_leaves_etag_and_storage_in_step(scene: Scene) -> None:
    await scene.start("a", "b", kinds=(Interrupted,))
    client = await scene.client()
    grain = client.grain(Interrupted, "i")
    await grain.add(1)
    home = scene.cluster.home(grain)
    scene.stand.storage_after[home] = held_at(scene.stage, "answer")
    adding = asyncio.create_task(grain.add(10))
    await scene.stage.heard("write on its way")
    moving = asyncio.create_task(client.migrate(grain, to=scene.cluster.elsewhere(grain)))
    await asyncio.sleep(1.0)
    assert not moving.done()
    scene.stage.gate("answer").open()
    assert (await moving).moved
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await adding
    assert await grain.add(100) == 111
    assert value_of(scene, grain) == 111


@grain(kind="growing")
class Former(Grain):
    """As a former release had it."""

    async def look(self) -> int:
        return -1


@grain(kind="growing")
class Present(Grain):
    """The same kind, which has a state by now."""

    total: Persistent[int] = persistent(int)

    async def look(self) -> int:
        return self.total.value


@told
async def test_a_state_that_the_former_release_did_not_have_is_read_on_arrival(scene: Scene) -> None:
    await scene.start("a", kinds=(Former,))
    await scene.start("b", kinds=(Present,))
    client = await scene.client()
    growing = with_hint(client.grain(Former, "g"), "a")
    assert await growing.look() == -1
    put(scene, growing, 7)
    assert (await client.migrate(growing, to="b")).moved
    assert await growing.look() == 7
    moved = await client.migrate(growing, to="a")
    assert moved.status is MoveStatus.REFUSED, moved
    assert "system/state/total" in moved.why
    assert await growing.look() == 7


async def _seen_dead(scene: Scene, silo: Silo, lost: SiloAddress) -> None:
    await scene.cluster.seen(lambda: silo.view.is_dead(lost))


@told
async def test_R429_a_silo_that_is_killed_at_any_step_of_a_write_loses_no_acknowledged_one(scene: Scene) -> None:
    steps: list[tuple[str, Callable[[Scene], dict[str, Hook]]]] = [
        ("before", lambda scene: scene.stand.storage_before),
        ("after", lambda scene: scene.stand.storage_after),
    ]
    for number, (step, hooks) in enumerate(steps):
        host, rest = f"host-{step}", f"rest-{step}"
        silo, other = await scene.start(host, rest, kinds=(Account,))
        account = with_hint(other.grain(Account, step), host)
        assert await account.pay(1) == 1
        hooks(scene)[host] = held_at(scene.stage, step)
        paying = asyncio.create_task(account.pay(10))
        await scene.stage.heard("write on its way", number + 1)
        lost = silo.address
        await scene.cluster.kill(host)
        with pytest.raises(SiloUnavailable):
            await paying
        await _seen_dead(scene, other, lost)
        assert await other.grain(Account, step).look() == (1 if step == "before" else 11)
        await scene.cluster.kill(rest)


@pytest.mark.parametrize("kind", [StorageConflict, StorageOutcomeUnknown])
def test_errors_reach_callers_with_the_name_of_the_state(
    kind: type[StorageConflict] | type[StorageOutcomeUnknown],
) -> None:
    codec = Serializer(TypeRegistry())
    error: Any = kind("what happened", "total")
    arrived: Any = codec.isolate_error(error)
    assert (type(arrived), arrived.state) == (kind, "total")
