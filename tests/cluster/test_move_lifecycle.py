"""What a grain goes through when it moves: hooks, soft state, and how a failed move is taken back. R-420 and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from silo.directory.errors import ActivationFailed
from silo.grain import Grain, grain, soft_state
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.migration.outcome import MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import with_hint
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger, Witness
from tests.cluster.stage import Stage, gate, say, stage

pytestmark = pytest.mark.real

AT_THE_SOURCE = ["on_migrating admin b", "on_deactivate migrating", "on_dehydrate"]
AT_THE_TARGET = ["constructor", "on_rehydrate yes", "on_activate migration"]


async def test_R421_R420_the_hooks_run_in_the_order_of_the_diagram(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Witness,))
    client = await cluster.client()
    witness = with_hint(client.grain(Witness, "k"), "a")
    await witness.turn()
    assert (await client.migrate(witness, to="b")).moved
    await witness.turn()
    assert stage.lines == ["constructor", "on_activate call", "turn", *AT_THE_SOURCE, *AT_THE_TARGET, "turn"]
    assert await witness.count() == 2


async def test_R422_neither_a_fresh_activation_nor_a_deactivation_touches_the_hooks_of_a_move(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Witness,))
    client = await cluster.client()
    witness = client.grain(Witness, "k")
    await witness.turn()
    await witness.leave()
    await stage.heard("on_deactivate application")
    assert stage.lines == ["constructor", "on_activate call", "turn", "on_deactivate application"]


class Part:
    """A participant that says what it does, and fails where it is told to."""

    def __init__(self, name: str, fails: str = "") -> None:
        self.name = name
        self.value = ""
        self._fails = fails

    def on_dehydrate(self, context: DehydrateContext) -> None:
        say(f"dehydrate {self.name}")
        if self._fails == "dehydrate":
            raise RuntimeError(f"{self.name} is stuck")
        context["value"] = self.value

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"rehydrate {self.name}")
        if self._fails == "rehydrate":
            raise RuntimeError(f"{self.name} does not fit")
        self.value = context["value"]


class _Composed(Grain):
    """Of several parts; which of them fails is in the key: `dehydrate` or `rehydrate`."""

    own: str = soft_state(default="")

    def __init__(self) -> None:
        self.first = Part("first")
        self.second = Part("second", self.key)
        self.third = Part("third")
        for part in (self.first, self.second, self.third):
            self.add_participant(part)
        self.remove_participant(self.third)

    async def fill(self, value: str) -> None:
        self.own = self.first.value = self.second.value = self.third.value = value

    async def values(self) -> list[str]:
        return [self.own, self.first.value, self.second.value, self.third.value]

    def on_dehydrate(self, context: DehydrateContext) -> None:
        say("dehydrate grain")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say("rehydrate grain")


@grain(kind="composed")
class Composed(_Composed):
    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"on_activate {reason}")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"on_deactivate {reason}")


@grain(kind="lenient", on_participant_error="skip")
class Lenient(_Composed):
    pass


async def test_R423_R426_participants_take_part_and_come_back_in_the_reverse_order(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Composed,))
    client = await cluster.client()
    composed = with_hint(client.grain(Composed, "fine"), "a")
    await composed.fill("x")
    assert (await client.migrate(composed, to="b")).moved
    assert await composed.values() == ["x", "x", "x", ""]  # the third was removed: it takes no part
    order = [line for line in stage.lines if "hydrate" in line]
    there = ["dehydrate grain", "dehydrate first", "dehydrate second"]
    assert order == there + [line.replace("dehydrate", "rehydrate") for line in reversed(there)]


@pytest.mark.parametrize("where", ["dehydrate", "rehydrate"])
async def test_R427_a_participant_that_fails_aborts_the_move_and_everything_is_as_before(
    cluster: Cluster, stage: Stage, where: str
) -> None:
    await cluster.start("a", "b", kinds=(Composed,))
    client = await cluster.client()
    composed = with_hint(client.grain(Composed, where), "a")
    await composed.fill("x")
    before = await cluster.entry(composed)
    outcome = await client.migrate(composed, to="b")
    assert outcome.status is MoveStatus.ABORTED
    assert "participant/second" in outcome.why
    await cluster.arrived(composed, "a")
    assert await cluster.entry(composed) == before
    assert await composed.values() == ["x", "x", "x", "x"]  # the very same instance
    hooks = [line for line in stage.lines if line.startswith("on_")]
    assert hooks == ["on_activate call", "on_deactivate migrating", "on_activate migration_aborted"]


@pytest.mark.parametrize("where", ["dehydrate", "rehydrate"])
async def test_R427_skip_leaves_the_failing_part_behind_and_takes_the_others_along(
    cluster: Cluster, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start("a", "b", kinds=(Lenient,))
    client = await cluster.client()
    lenient = with_hint(client.grain(Lenient, where), "a")
    await lenient.fill("x")
    assert (await client.migrate(lenient, to="b")).moved
    assert await lenient.values() == ["x", "x", "", ""]
    assert "migration.part_skipped" in caplog.text


@grain(kind="sulky")
class Sulky(Grain):
    value: int = soft_state(default=0)
    seen: str = soft_state(default="")

    async def add(self) -> int:
        self.value += 1
        return self.value

    async def what_was_seen(self) -> str:
        return self.seen

    async def on_deactivate(self) -> None:
        raise OSError("the disk is full")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        self.seen = f"{context.reason} {context.target} {context.deactivation_error!r}"

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"arrived: {context.reason}")


async def test_R428_soft_state_goes_along_though_on_deactivate_raised_and_dehydrate_is_told(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Sulky,))
    client = await cluster.client()
    sulky = with_hint(client.grain(Sulky, "k"), "a")
    await sulky.add()
    assert (await client.migrate(sulky, to="b", reason="just so")).moved
    assert await sulky.add() == 2
    assert await sulky.what_was_seen() == "just so b OSError('the disk is full')"
    assert stage.lines == ["arrived: just so"]


class _Choosy(Grain):
    """Fails to be activated where it arrives, as long as the test wants it to."""

    value: int = soft_state(default=0)

    def __init__(self) -> None:
        self.scratch = 0

    async def add(self) -> str:
        self.value += 1
        self.scratch += 1
        return f"{self.silo} {self.value} {self.scratch}"

    async def add_at(self, gate_name: str) -> str:
        say("adding")
        await gate(gate_name)
        return await self.add()

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"on_activate {reason} at {self.silo}")
        if reason in FAILS.get(self.key, ()):
            raise ConnectionError("no database here")


FAILS: dict[str, tuple[ActivationReason, ...]] = {
    "never arrives": (ActivationReason.MIGRATION,),
    "neither arrives nor returns": (ActivationReason.MIGRATION, ActivationReason.MIGRATION_ABORTED),
}


@grain(kind="choosy")
class Choosy(_Choosy):
    pass


async def test_a_grain_that_cannot_be_activated_at_the_target_is_given_back_and_answers_from_its_old_instance(
    cluster: Cluster, stage: Stage
) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Choosy,))
    client = await cluster.client()
    choosy = with_hint(client.grain(Choosy, "never arrives"), "a")
    await choosy.add()
    running = asyncio.create_task(choosy.add_at("go"))
    await stage.heard("adding")
    moving = asyncio.create_task(client.migrate(choosy, to="b"))
    await cluster.draining(choosy)
    waiting = asyncio.create_task(choosy.add())
    await cluster.queued(choosy, 1)
    stage.gate("go").open()
    outcome = await moving
    assert outcome.status is MoveStatus.ABORTED
    assert "no database here" in outcome.why
    assert await running == "a 2 2"
    assert await waiting == "a 3 3"  # what was not soft state is there as well: it is the same instance
    assert stage.lines[-3:] == [
        "on_activate migration at b",
        "on_activate migration at b",
        "on_activate migration_aborted at a",
    ]
    entry = await cluster.entry(choosy)
    assert entry is not None
    assert entry.silo == a.address
    assert await choosy.add() == "a 4 4"


async def test_a_grain_that_can_neither_arrive_nor_return_fails_its_callers_and_is_started_anew(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Choosy,))
    client = await cluster.client()
    choosy = with_hint(client.grain(Choosy, "neither arrives nor returns"), "a")
    await choosy.add()
    running = asyncio.create_task(choosy.add_at("go"))
    await stage.heard("adding")
    moving = asyncio.create_task(client.migrate(choosy, to="b"))
    await cluster.draining(choosy)
    waiting = asyncio.create_task(choosy.add())
    await cluster.queued(choosy, 1)
    stage.gate("go").open()
    assert not (await moving).moved
    await running
    (waited,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(waited, ActivationFailed):  # it came back while there still was hope
        assert "no database here" in str(waited)
        waited = await choosy.add()
    assert waited in ("a 1 1", "b 1 1")


@grain(kind="stranded")
class Stranded(Grain):
    """Has no luck where it arrives, and learns that late."""

    async def where(self) -> str:
        return self.silo

    async def on_activate(self, reason: ActivationReason) -> None:
        if reason is ActivationReason.MIGRATION:
            say("arriving")
            await gate("arrive")
            raise ConnectionError("no database here")


@pytest.mark.in_memory
async def test_R460_a_target_that_cannot_open_after_its_source_has_died_deletes_no_row_and_the_next_call_takes_it_over(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", "c", kinds=(Stranded,))
    client = await cluster.client()
    stranded = client.grain(Stranded, "k")
    await with_hint(stranded, "a").where()
    before = await cluster.entry(stranded)
    moving = asyncio.create_task(client.migrate(stranded, to="b"))
    await stage.heard("arriving")
    await cluster.kill("a")
    await cluster.seen(lambda: len(cluster.silos["b"].view.active()) == 2)
    waiting = asyncio.create_task(stranded.where())
    stage.gate("arrive").open()
    assert await waiting in ("b", "c")
    await asyncio.gather(moving, return_exceptions=True)
    entry = await cluster.entry(stranded)
    assert before is not None
    assert entry is not None
    assert entry.epoch == before.epoch + 3  # to the target, back to the source that had died, to whoever took it over


async def test_an_instance_that_cannot_be_reactivated_after_an_abort_is_rebuilt_from_what_it_had_handed_over(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Brittle,))
    client = await cluster.client()
    brittle = with_hint(client.grain(Brittle, "k"), "a")
    await brittle.add()
    outcome = await client.migrate(brittle, to="b")
    assert outcome.status is MoveStatus.ABORTED
    await cluster.arrived(brittle, "a")
    assert await brittle.add() == "2 at a"
    assert stage.lines.count("rehydrated") == 1


@grain(kind="brittle")
class Brittle(Grain):
    """Refuses to arrive at b, and its old instance refuses to go on."""

    value: int = soft_state(default=0)

    def __init__(self) -> None:
        self.used = False
        self.add_participant(Part("of each instance"))

    async def add(self) -> str:
        self.value += 1
        self.used = True
        return f"{self.value} at {self.silo}"

    def on_dehydrate(self, context: DehydrateContext) -> None:
        """Nothing beside the soft state."""

    def on_rehydrate(self, context: RehydrateContext) -> None:
        if self.silo == "b":
            raise RuntimeError("not at b")
        say("rehydrated")

    async def on_activate(self, reason: ActivationReason) -> None:
        if reason is ActivationReason.MIGRATION_ABORTED and self.used:
            raise RuntimeError("this instance is worn out")


@grain(kind="consenting")
class Consenting(Grain):
    def __init__(self) -> None:
        self.agrees: Callable[[], bool] = lambda: True

    async def set(self, how: str) -> None:
        def fails() -> bool:
            raise LookupError("cannot say")

        self.agrees = {"no": lambda: False, "fails": fails, "yes": lambda: True}[how]

    def can_migrate(self) -> bool:
        return self.agrees()

    async def on_migrating(self) -> None:
        say("noticed")


async def test_R440_a_grain_that_says_no_is_not_moved_and_nothing_is_stopped(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Consenting,))
    client = await cluster.client()
    consenting = with_hint(client.grain(Consenting, "k"), "a")
    await consenting.set("no")
    refused = await client.migrate(consenting, to="b")
    assert (refused.status, refused.why) == (MoveStatus.REFUSED, "can_migrate said no")
    await consenting.set("fails")
    refused = await client.migrate(consenting, to="b")
    assert refused.status is MoveStatus.REFUSED
    assert "cannot say" in refused.why
    assert stage.lines == []
    await consenting.set("yes")
    assert (await client.migrate(consenting, to="b")).moved


@grain(kind="costly")
class Costly(Grain):
    async def work(self) -> None:
        """Nothing to do."""

    def migration_cost(self) -> float:
        say("asked for its cost")
        return 7.0


async def test_R416_the_cost_of_a_move_is_asked_by_neither_calls_nor_moves(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Costly,))
    client = await cluster.client()
    costly = with_hint(client.grain(Costly, "k"), "a")
    for target in ("b", "a"):
        await costly.work()
        assert (await client.migrate(costly, to=target)).moved
    assert stage.lines == []


@grain(kind="tidy")
class Tidy(Grain):
    """Does not save what travels anyway."""

    value: int = soft_state(default=0)

    async def add(self) -> int:
        self.value += 1
        return self.value

    async def leave(self) -> None:
        self.deactivate()

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        if reason is not DeactivationReason.MIGRATING:
            say(f"saved {self.value}")


async def test_R420_a_grain_may_skip_persisting_when_it_only_moves(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Tidy,))
    client = await cluster.client()
    tidy = with_hint(client.grain(Tidy, "k"), "a")
    await tidy.add()
    assert (await client.migrate(tidy, to="b")).moved
    assert await tidy.add() == 2
    assert stage.lines == []
    await tidy.leave()
    await stage.heard("saved 2")


async def test_R424_a_hint_places_a_new_activation_and_a_hint_that_cannot_be_followed_is_passed_over(
    cluster: Cluster,
) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    await cluster.start("other", kinds=(Witness,))
    client = await cluster.client()
    for number in range(5):
        for silo in ("a", "b"):
            assert await with_hint(client.grain(Ledger, f"{number} {silo}"), silo).where() == silo
    assert await with_hint(client.grain(Ledger, "0 a"), "b").where() == "a"  # active already: no hint moves it
    for hint in ("other", "nowhere"):
        assert await with_hint(client.grain(Ledger, f"hinted at {hint}"), hint).where() in ("a", "b")


@grain(kind="versioned")
class Versioned(Grain):
    """Its form and its values, on both sides of a change of the application."""

    values: dict[str, list[int]] = soft_state(default_factory=dict)
    pair: tuple[int, frozenset[str]] = soft_state(default_factory=lambda: (0, frozenset[str]()))
    unread: list[int] = soft_state(default_factory=list)

    async def set(self) -> None:
        self.values["x"] = [1, 2]
        self.pair = (2**70, frozenset({"a"}))

    async def get(self) -> str:
        return repr((self.values, self.pair, self.unread))


async def test_R408_soft_state_keeps_its_exact_types_over_many_moves(cluster: Cluster) -> None:
    await cluster.start("a", "b", "c", kinds=(Versioned,))
    client = await cluster.client()
    versioned = with_hint(client.grain(Versioned, "k"), "a")
    await versioned.set()
    before = await versioned.get()
    for target in ("b", "c", "a", "c", "b"):
        assert (await client.migrate(versioned, to=target)).moved
        assert await versioned.get() == before


async def test_constructors_know_their_grain_and_its_silo_on_both_sides(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Aware,))
    client = await cluster.client()
    aware = with_hint(client.grain(Aware, "k"), "a")
    assert await aware.known() == "k at a"
    assert (await client.migrate(aware, to="b")).moved
    assert await aware.known() == "k at b"
    assert stage().lines == ["built k at a", "built k at b"]


@grain(kind="aware")
class Aware(Grain):
    def __init__(self) -> None:
        self.first = f"{self.key} at {self.silo}"
        say(f"built {self.first}")

    async def known(self) -> str:
        return self.first
