"""What can go wrong with a move, as the scenarios of kind migration tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter as Tally
from collections.abc import Awaitable, Callable

import pytest

from silo.directory.errors import CallExpired, CallTimeout, NotExecuted, OutcomeUnknown
from silo.grain import Grain, grain, one_way, soft_state
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.moving import source as source_of_moves
from silo.reference import grain_id, with_hint, with_timeout
from silo.settings import MigrationSettings
from tests.cluster.clusters import LEASE, Cluster
from tests.cluster.mortal import MortalCluster, simulated
from tests.cluster.stage import Stage, gate, say

ABC = ("a", "b", "c")
KNOWN_WITHIN_S = 1.3 * LEASE.lease_s
"""By then the death of a silo is known, though nobody proves it."""


@grain(kind="traveller", drain_timeout=2.0)
class Traveller(Grain):
    """Counts, says what it executes, and stops in its hooks at gates that the test makes."""

    count: int = soft_state(default=0)

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"{self.key} activated at {self.silo}: {reason}")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"{self.key} deactivated at {self.silo}: {reason}")
        if self.key.startswith("slow"):
            await gate("deactivated")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"{self.key} rehydrated at {self.silo}")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        context["from"] = self.silo

    async def add(self, call: str = "") -> int:
        say(f"executed {call}")
        self.count += 1
        return self.count

    async def hang(self) -> str:
        say("hangs")
        await gate("never")
        self.count += 100
        return self.silo

    async def where(self) -> str:
        return self.silo

    async def leave(self) -> None:
        self.deactivate()


def executed(stage: Stage) -> Tally[str]:
    """How often each call was executed."""
    return Tally(line.removeprefix("executed ") for line in stage.lines if line.startswith("executed "))


# ------------------------------------------------------------------------------------------------ a turn without an end


async def test_S001_a_move_behind_an_endless_turn_is_given_up_and_the_grain_stays_with_its_queue(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Traveller,))
    client = await cluster.client()
    traveller = with_hint(client.grain(Traveller, "k"), "a")
    await traveller.add()
    entry = await cluster.entry(traveller)
    hanging = asyncio.create_task(with_timeout(traveller, 60.0).hang())
    await stage.heard("hangs")
    moving = asyncio.create_task(client.migrate(traveller, to="b"))
    await cluster.draining(traveller)
    impatient = [asyncio.create_task(with_timeout(traveller, 5.0).add(f"impatient {number}")) for number in range(20)]
    patient = asyncio.create_task(with_timeout(traveller, 50.0).add("patient"))
    began = asyncio.get_running_loop().time()
    outcome = await moving
    assert outcome.status is MoveStatus.ABORTED
    assert outcome.why == "its running calls did not end within 2.0 s: hang"
    assert asyncio.get_running_loop().time() - began < 2.5
    ended = await asyncio.gather(*impatient, return_exceptions=True)
    assert {type(each) for each in ended} <= {CallExpired, CallTimeout}
    assert asyncio.get_running_loop().time() - began < 6.0
    assert await cluster.entry(traveller) == entry
    assert cluster.home(traveller) == "a"
    stage.gate("never").open()
    assert await hanging == "a"
    assert await patient == 102
    assert executed(stage) == {"": 1, "patient": 1}
    assert await cluster.entry(traveller) == entry
    assert stage.lines.count("k activated at b: migration") == 0


async def test_S001_a_turn_left_behind_by_a_silo_that_had_to_stop_revives_nothing(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Traveller,), migration=MigrationSettings(shutdown_timeout_s=1.0))
    client = await cluster.client()
    traveller = with_hint(client.grain(Traveller, "k"), "a")
    await traveller.add()
    hanging = asyncio.create_task(traveller.hang())
    await stage.heard("hangs")
    stopping = asyncio.create_task(cluster.stop("a"))
    with pytest.raises(OutcomeUnknown):
        await hanging
    await stopping
    assert await traveller.add() == 2  # its state has come along
    entry = await cluster.entry(traveller)
    stage.gate("never").open()
    assert await traveller.add() == 3
    assert await cluster.entry(traveller) == entry
    assert cluster.home(traveller) == "b"


# --------------------------------------------------------------------------------------------------- parts that do fail


class Keys:
    """A participant that writes three keys."""

    name = "keys"

    def on_dehydrate(self, context: DehydrateContext) -> None:
        for number in range(3):
            context[f"key {number}"] = number

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"rehydrated keys of {context['key 0']}")


class Faulty:
    """A participant that cannot hand over what it has."""

    name = "faulty"

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def on_dehydrate(self, context: DehydrateContext) -> None:
        if self._fails:
            raise ValueError("half of it is missing")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        """Nothing came."""


@grain(kind="crate")
class Crate(Grain):
    """Has two participants, the second of which fails where the key says so."""

    calls: list[int] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.add_participant(Keys())
        self.add_participant(Faulty(self.key == "7"))

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"rehydrated {self.key}")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        """The soft state and the participants are all."""

    async def put(self, number: int) -> list[int]:
        self.calls.append(number)
        return self.calls

    async def hold(self) -> None:
        say("held")
        await gate("go")


async def test_S002_a_participant_that_raises_keeps_its_own_grain_alone_and_loses_no_queued_call(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Crate,))
    client = await cluster.client()
    crates = [with_hint(client.grain(Crate, str(number)), "a") for number in range(20)]
    await asyncio.gather(*(crate.put(-1) for crate in crates))
    holding = asyncio.create_task(crates[7].hold())
    await stage.heard("held")
    moving = asyncio.create_task(client.migrate_many(crates, to="b"))
    await cluster.draining(crates[7])
    queued = [asyncio.create_task(crates[7].put(number)) for number in range(50)]
    await cluster.queued(crates[7], 50)
    stage.gate("go").open()
    outcomes = await moving
    assert [outcome.grain.key for outcome in outcomes if not outcome.moved] == ["7"]
    assert outcomes[7].status is MoveStatus.ABORTED
    assert "half of it is missing" in outcomes[7].why
    await holding
    assert (await asyncio.gather(*queued))[-1] == [-1, *range(50)]
    assert cluster.home(crates[7]) == "a"
    assert "rehydrated 7" not in stage.lines
    assert sum(line.startswith("rehydrated keys") for line in stage.lines) == 19


# ----------------------------------------------------------------------------------------- silos that die in the middle


async def call_on(traveller: Traveller, ended: dict[str, object], goes_on: Callable[[], bool]) -> None:
    """Call it fifty times a second; note how each call ended, and fail where one outlives its deadline."""
    deadline_s = 15.0

    async def call(name: str) -> None:
        async with asyncio.timeout(deadline_s + 1.0):
            try:
                ended[name] = await with_timeout(traveller, deadline_s).add(name)
            except (NotExecuted, OutcomeUnknown) as error:
                ended[name] = error

    async with asyncio.TaskGroup() as calls:
        for number in itertools.count():
            if not goes_on():
                break
            calls.create_task(call(f"call {number}"))
            await asyncio.sleep(0.02)


def check_calls(stage: Stage, ended: dict[str, object]) -> None:
    """None ran twice, and none ran that is said not to have."""
    times = executed(stage)
    assert max(times.values()) == 1
    for name, how in ended.items():
        if isinstance(how, int):
            assert times[name] == 1, f"{name} was answered and not executed"
        elif isinstance(how, NotExecuted):
            assert times[name] == 0, f"{name} was executed, and failed with {how!r}"


@pytest.mark.parametrize("when", ["before the offer", "before the commit", "after the commit"])
@simulated
async def test_S004_a_target_that_dies_at_any_step_leaves_the_grain_callable_and_no_call_hanging(
    mortal: MortalCluster, stage: Stage, when: str
) -> None:
    """Where it dies before the commit, the state has stayed at the source; after it, the state may die with it."""
    _, _, c = await mortal.start(*ABC, kinds=(Traveller,))
    traveller = c.grain(Traveller, "slow k")
    await with_hint(traveller, "a").add()
    loop = asyncio.get_running_loop()

    async def die(call: str) -> None:
        if call == "register":
            mortal.kill_now("b")
            await loop.create_future()  # a dead process goes on with nothing

    match when:
        case "before the commit":
            mortal.world.before["b"] = die
        case "after the commit":
            mortal.world.after["b"] = die
        case _:
            pass
    ended: dict[str, object] = {}
    goes_on = True
    calling = asyncio.create_task(call_on(traveller, ended, lambda: goes_on))
    moving = asyncio.create_task(c.migrate(traveller, to="b"))
    await stage.heard("slow k deactivated at a: migrating")
    if when == "before the offer":
        mortal.kill_now("b")
    stage.gate("deactivated").open()
    outcome: MigrationOutcome = await moving
    died_at = loop.time()
    assert "b" not in mortal.silos
    await asyncio.sleep(KNOWN_WITHIN_S)
    await with_timeout(traveller, 5.0).add("afterwards")
    assert loop.time() - died_at < KNOWN_WITHIN_S + 0.5
    goes_on = False
    await calling
    answers = [how for how in ended.values() if isinstance(how, int)]
    assert mortal.home(traveller) in ("a", "c")
    check_calls(stage, ended)
    if when != "after the commit":
        assert mortal.home(traveller) == "a"
        assert answers == list(range(2, len(answers) + 2))
        assert outcome.status is MoveStatus.ABORTED


@simulated
async def test_S005_a_source_that_dies_with_a_full_queue_lets_nobody_wait_for_the_whole_timeout(
    mortal: MortalCluster, stage: Stage
) -> None:
    """The directory names the target already: callers hear it as soon as the death is known, and may try again."""
    a, _, c = await mortal.start(*ABC, kinds=(Traveller,))
    traveller = c.grain(Traveller, "slow k")
    await with_hint(traveller, "a").add()
    loop = asyncio.get_running_loop()
    moving = asyncio.create_task(c.migrate(traveller, to="b"))
    await stage.heard("slow k deactivated at a: migrating")
    took: list[float] = []

    async def call(name: str) -> object:
        began = loop.time()
        try:
            return await with_timeout(traveller, 30.0).add(name)
        except (NotExecuted, OutcomeUnknown) as error:
            return error
        finally:
            took.append(loop.time() - began)

    queued = {f"call {number}": asyncio.create_task(call(f"call {number}")) for number in range(200)}
    source = a.runtime.catalog.get(grain_id(traveller))
    assert source is not None
    await mortal.seen(lambda: source.turns.waiting_count == 200)

    async def committed(call: str) -> None:
        if call == "register":
            mortal.kill_now("a")

    mortal.world.after["b"] = committed
    stage.gate("deactivated").open()
    ended = dict(zip(queued, await asyncio.gather(*queued.values()), strict=True))
    assert "a" not in mortal.silos
    assert max(took) < KNOWN_WITHIN_S + 1.0
    check_calls(stage, ended)
    assert {type(how) for how in ended.values()} <= {int, NotExecuted}  # b knows who stood in the queue
    await mortal.arrived(traveller, "b")
    assert await traveller.add("afterwards") == 2 + sum(isinstance(how, int) for how in ended.values())
    with pytest.raises(OutcomeUnknown):  # the source alone could have told, and it is dead
        await moving


# ------------------------------------------------------------------------------------------ while it is being activated


@grain(kind="sleepy")
class Sleepy(Grain):
    """Takes its time to start."""

    async def on_activate(self, reason: ActivationReason) -> None:
        await asyncio.sleep(0.05)

    async def touch(self) -> str:
        return self.silo


async def test_S006_moves_and_cancelled_calls_during_activations_leave_each_grain_whole_or_gone(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start(*ABC, kinds=(Sleepy,))
    client = await cluster.client()
    rng = random.Random(6)
    grains = [client.grain(Sleepy, str(number)) for number in range(300)]

    async def disturb(sleepy: Sleepy) -> MigrationOutcome:
        calls = [asyncio.create_task(sleepy.touch()) for _ in range(4)]
        await asyncio.sleep(rng.uniform(0.0, 0.06))
        moving = asyncio.create_task(client.migrate(sleepy, to=rng.choice(ABC)))
        await asyncio.sleep(rng.uniform(0.0, 0.06))
        calls[0].cancel()
        calls.append(asyncio.create_task(sleepy.touch()))
        rest = await asyncio.gather(*calls[1:])
        assert set(rest) <= set(ABC)
        await asyncio.wait([calls[0]])
        return await moving

    outcomes = await asyncio.gather(*(disturb(sleepy) for sleepy in grains))
    assert Tally(outcome.status for outcome in outcomes)[MoveStatus.MOVED] > 100
    assert {outcome.status for outcome in outcomes} <= {MoveStatus.MOVED, MoveStatus.REFUSED, MoveStatus.NOT_ACTIVE}
    for sleepy in grains:
        entry = await cluster.entry(sleepy)
        assert entry is not None
        assert entry.activation == cluster.activation(sleepy).activation_id
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


# ------------------------------------------------------------------------------------------------- versions that differ


@pytest.mark.parametrize("newer", ["schema", "format"])
async def test_S007_an_older_silo_refuses_what_it_cannot_read_and_every_grain_answers_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    @grain(kind="document")
    class Document(Grain):
        text: str = soft_state(default="", schema=1)

        async def write(self, text: str) -> str:
            self.text += text
            return f"{self.text} at {self.silo}"

    @grain(kind="document", version=2)
    class LaterDocument(Grain):
        text: str = soft_state(default="", schema=2 if newer == "schema" else 1)

        async def write(self, text: str) -> str:
            self.text += text
            return f"{self.text} at {self.silo}"

    await cluster.start("later", kinds=(LaterDocument,))
    await cluster.start("earlier", kinds=(Document,))
    client = await cluster.client()
    documents = [client.grain(LaterDocument, str(number)) for number in range(33)]
    await asyncio.gather(*(with_hint(document, "later").write("x") for document in documents))
    if newer == "format":
        monkeypatch.setattr(source_of_moves, "PAYLOAD_FORMAT", 2)
    outcomes = await client.migrate_many(documents, to="earlier")
    expected = MoveStatus.REFUSED if newer == "schema" else MoveStatus.ABORTED
    assert Tally(outcome.status for outcome in outcomes) == {expected: 33}
    assert all(newer in outcome.why for outcome in outcomes), outcomes[0].why
    async with asyncio.timeout(1.0):
        assert {await document.write("y") for document in documents} == {"xy at later"}


# ------------------------------------------------------------------------------------------------------------ opted out


@grain(kind="anchored", migratable=False, queue_calls_max=3)
class Anchored(Traveller):
    """Wants to be left where it is."""


async def test_S008_what_a_kind_says_of_itself_holds_on_whichever_silo_and_whoever_activated_it(
    cluster: Cluster, stage: Stage
) -> None:
    a, _ = await cluster.start("a", "b", kinds=(Anchored,))
    client = await cluster.client()
    for key, target in (("far", "b"), ("near", "a")):
        anchored = a.grain(Anchored, key)
        await with_hint(anchored, target).add()
        assert cluster.home(anchored) == target
        elsewhere = cluster.elsewhere(anchored)
        refused = await client.migrate(anchored, to=elsewhere)
        assert (refused.status, cluster.home(anchored)) == (MoveStatus.REFUSED, target)
        assert cluster.activation(anchored).turns.waiting_max == 3
    await cluster.stop("b")
    assert stage.lines.count("far deactivated at b: shutting_down") == 1
    assert "far rehydrated at a" not in stage.lines
    assert await a.grain(Anchored, "far").add() == 1


# ----------------------------------------------------------------------------------------------------- order and number


@grain(kind="register")
class Register(Grain):
    """Keeps what each caller says, in order."""

    entries: dict[str, list[int]] = soft_state(default_factory=dict)

    async def append(self, caller: str, number: int) -> None:
        self.entries.setdefault(caller, []).append(number)

    async def read(self) -> dict[str, list[int]]:
        return self.entries

    @one_way
    async def append_and_go(self, caller: str, number: int) -> None:
        self.entries.setdefault(caller, []).append(number)

    async def on_deactivate(self) -> None:
        await asyncio.sleep(0.3)


async def keep_moving(move: Callable[[str], Awaitable[MigrationOutcome]], moves: int, pause_s: float) -> int:
    """Move a grain from a to b to c and to a again; how often that was done."""
    done = 0
    for target in itertools.islice(itertools.cycle("bca"), moves):
        done += (await move(target)).moved
        await asyncio.sleep(pause_s)
    return done


async def test_S009_calls_sent_without_waiting_run_once_and_in_their_callers_order_over_many_moves(
    cluster: Cluster,
) -> None:
    silos = await cluster.start(*ABC, kinds=(Register,))
    client = await cluster.client()
    register = client.grain(Register, "k")
    await with_hint(register, "a").read()
    callers = {silo.name: silo.grain(Register, "k") for silo in silos} | {"client": register}
    callers |= {f"client {number}": (await cluster.client()).grain(Register, "k") for number in range(4)}
    total = 300

    async def call(name: str, its: Register) -> None:
        async with asyncio.TaskGroup() as calls:
            for number in range(total):
                calls.create_task(its.append(name, number))
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as all_callers:
        for name, its in callers.items():
            all_callers.create_task(call(name, its))
        moved = await keep_moving(lambda to: client.migrate(register, to=to), 15, 0.05)
    assert moved == 15
    assert await register.read() == {name: list(range(total)) for name in callers}


async def test_S012_what_arrives_during_a_slow_hand_over_is_all_run_and_waits_no_longer_than_that(
    cluster: Cluster,
) -> None:
    """Requests and one-way calls, 500 a second, while each hand-over takes 0.3 s: no retry after a period shows."""
    await cluster.start(*ABC, kinds=(Register,))
    client = await cluster.client()
    register = client.grain(Register, "k")
    await with_hint(register, "a").read()
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    goes_on = True
    sent = {"asked": 0, "told": 0}

    async def ask(number: int) -> None:
        began = loop.time()
        await register.append("asked", number)
        latencies.append(loop.time() - began)

    async def call_all_the_time() -> None:
        async with asyncio.TaskGroup() as calls:
            while goes_on:
                calls.create_task(ask(sent["asked"]))
                sent["asked"] += 1
                await asyncio.sleep(0.002)
                await register.append_and_go("told", sent["told"])
                sent["told"] += 1
                await asyncio.sleep(0.002)

    calling = asyncio.create_task(call_all_the_time())
    moved = await keep_moving(lambda to: client.migrate(register, to=to), 8, 0.2)
    goes_on = False
    await calling
    assert moved == 8
    assert await register.read() == {name: list(range(count)) for name, count in sent.items()}
    assert max(latencies) < 0.3 + 0.05


# ------------------------------------------------------------------------------------------------------- several movers


@pytest.mark.parametrize("seed", range(12))
@simulated
async def test_S013_movers_that_meet_at_one_grain_make_one_transition_at_a_time(
    mortal: MortalCluster, stage: Stage, seed: int
) -> None:
    """Two orders to move, the end of its silo and its own wish to end, at once and in any order."""
    rng = random.Random(seed)
    _, b, c = await mortal.start(*ABC, kinds=(Traveller,))
    traveller = c.grain(Traveller, "k")
    await with_hint(traveller, "a").add()

    async def after_a_moment(what: Awaitable[object]) -> object:
        await asyncio.sleep(rng.uniform(0.0, 0.001))
        return await what

    wants = [b.migrate(traveller, to="b"), c.migrate(traveller, to="c"), mortal.stop("a"), traveller.leave()]
    rng.shuffle(wants)
    ended = await asyncio.gather(*(after_a_moment(want) for want in wants))
    outcomes = [each for each in ended if isinstance(each, MigrationOutcome)]
    assert len(outcomes) == 2
    count = await traveller.add()
    await mortal.settled()
    assert mortal.home(traveller) in ("b", "c")
    mortal.assert_rows_match()
    moves = sum(line.startswith("k rehydrated") for line in stage.lines)
    assert moves == sum(line.endswith(": migration") for line in stage.lines)
    assert moves >= len({outcome.epoch for outcome in outcomes if outcome.moved})
    ends = sum(line.endswith(": application") for line in stage.lines)
    assert count == (1 if ends else 2)  # its own wish ends the soft state, and nothing else does
    histories = [line for line in stage.lines if " activated at " in line or " deactivated at " in line]
    assert ["deactivated" in line for line in histories] == [bool(at % 2) for at in range(len(histories))]
