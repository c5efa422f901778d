"""What can go wrong as activations begin and end, as the scenarios of that kind tell it; see tests/SCENARIOS.md."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter as Tally
from datetime import timedelta
from itertools import pairwise

import pytest

from silo.activation.activation import Activation
from silo.activation.catalog import Catalog
from silo.activation.damping import FREE_TRIES, PAUSE_FIRST_S, PAUSE_LAST_S
from silo.directory.errors import (
    ActivationDamped,
    ActivationFailed,
    GrainMoved,
    InvalidGrain,
    InvalidSettings,
    SiloError,
)
from silo.grain import Grain, grain
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.reference import grain_id, with_hint, with_timeout
from silo.settings import ActivationSettings
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.stage import Stage, gate, say
from tests.cluster.stage import stage as the_stage

rng = random.Random()


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """The same draws for a test in each run."""
    rng.seed(request.node.name)


# -------------------------------------------------------------------------------------------- wishes in turns and hooks


@grain(kind="restless")
class Restless(Grain):
    """Wishes to move to b, or to end, where its key says so."""

    def _wish(self, place: str) -> None:
        if self.key.startswith(f"move in {place}") and self.silo == "a":
            self.migrate(to="b")
        if self.key.startswith(f"end in {place}"):
            self.deactivate()

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"{self.key} on: {reason}")
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        self._wish("on_activate")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"{self.key} off: {reason}")
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        self._wish("on_deactivate")

    async def turn(self) -> str:
        say(f"{self.key} turn")
        self._wish("turn")
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        return self.silo

    async def leave(self) -> None:
        self.deactivate()


BEGIN, MOVE, END = "on: call", ["off: migrating", "on: migration"], "off: application"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("move in turn", [BEGIN, "turn", *MOVE, "turn"]),
        ("move in on_activate", [BEGIN, "turn", *MOVE, "turn"]),
        ("end in turn", [BEGIN, "turn", END, BEGIN, "turn", END]),
        ("end in on_activate", [BEGIN, "turn", END, BEGIN, "turn", END]),
    ],
)
async def test_S059_what_a_grain_wishes_in_a_turn_or_as_it_begins_happens_after_the_first_turn(
    cluster: Cluster, stage: Stage, key: str, expected: list[str]
) -> None:
    await cluster.start("a", "b", kinds=(Restless,))
    client = await cluster.client()
    for number in range(100):
        its = f"{key} {number}"
        restless = client.grain(Restless, its)
        assert await with_hint(restless, "a").turn() == "a"
        if key.startswith("move"):
            await cluster.arrived(restless, "b")
        second = await with_hint(restless, "b").turn()
        assert second == "b"
        await cluster.seen(lambda: stage.lines[-1] == f"{its} {expected[-1]}")  # noqa: B023 - awaited here
        heard = [line.removeprefix(f"{its} ") for line in stage.lines if line.startswith(f"{its} ")]
        assert heard == expected


@pytest.mark.parametrize("wish", ["move", "end"])
async def test_S059_what_a_grain_wishes_as_it_ends_changes_nothing_and_holds_nothing_up(
    cluster: Cluster, stage: Stage, wish: str
) -> None:
    await cluster.start("a", "b", kinds=(Restless,))
    client = await cluster.client()
    for number in range(100):
        its = f"{wish} in on_deactivate {number}"
        restless = client.grain(Restless, its)
        assert await with_hint(restless, "a").turn() == "a"
        await restless.leave()
        assert await with_hint(with_timeout(restless, 1.0), "a").turn() == "a"
        heard = [line.removeprefix(f"{its} ") for line in stage.lines if line.startswith(f"{its} ")]
        assert heard == [BEGIN, "turn", END, BEGIN, "turn"]


# --------------------------------------------------------------------------------------------- grains that do not start


@grain(kind="sick")
class Sick(Grain):
    """Fails to start until it has tried so often; how is in its key."""

    async def on_activate(self) -> None:
        say(f"{self.key} tries")
        if "at once" not in self.key:
            await asyncio.sleep(0.01)
        if self.key.startswith("always") or the_stage().lines.count(f"{self.key} tries") <= 3:
            match self.key.split()[-1]:
                case "exit":
                    raise SystemExit(3)
                case "cancelled":
                    raise asyncio.CancelledError
                case "never":
                    await gate("never")
                case _:
                    raise ValueError("not yet")

    async def on_deactivate(self) -> None:
        say(f"{self.key} ends")

    async def turn(self) -> str:
        return self.silo


@pytest.mark.parametrize(
    "how", ["error", "exit", "cancelled", "never", "at once error", "at once exit", "at once cancelled"]
)
async def test_S060_a_start_that_fails_fails_all_its_callers_and_the_next_call_is_a_fresh_try(
    stage: Stage, how: str
) -> None:
    stand = MemoryStand()
    cluster = Cluster(stand)
    silos = await cluster.start("a", "b", kinds=(Sick,), activation=ActivationSettings(activation_timeout_s=1.0))
    client = await cluster.client()
    sick = client.grain(Sick, how)
    rows: list[object] = []

    async def call() -> str:
        try:
            return await sick.turn()
        except ActivationFailed as error:
            rows.append(stand.rows.look_up(grain_id(sick)))
            return str(error)

    for attempt in range(1, 4):
        answers = await asyncio.gather(*(call() for _ in range(100)))
        assert stage.lines == [f"{how} tries"] * attempt
        assert len(set(answers)) == 1
        expected = {"error": "ValueError: not yet", "exit": "SystemExit", "never": "TimeoutError"}
        assert expected.get(how.split()[-1], "Cancelled") in answers[0]
    assert rows == [None] * 300
    assert set(await asyncio.gather(*(call() for _ in range(100)))) <= {"a", "b"}
    assert stage.lines == [f"{how} tries"] * 4
    assert [entry.grain for entry in stand.rows.all()] == [grain_id(sick)]
    assert {silo.view.version for silo in silos} == {silos[0].view.version}
    await cluster.close()


# --------------------------------------------------------------------------------------- one end and the next beginning


@grain(kind="phoenix")
class Phoenix(Grain):
    """Ends as often as it is told, and takes its time over it."""

    def __init__(self) -> None:
        self.is_open = False

    async def on_activate(self) -> None:
        say(f"{self.key} begins")
        await asyncio.sleep(rng.uniform(0.0, 0.005))
        if self.key.startswith("frail") and rng.random() < 0.3:
            raise ValueError("it failed again")
        self.is_open = True
        say(f"{self.key} began")

    async def on_deactivate(self) -> None:
        self.is_open = False
        say(f"{self.key} ends")
        await asyncio.sleep(rng.uniform(0.0, 0.02))
        say(f"{self.key} ended")

    async def work(self) -> bool:
        return self.is_open

    async def fail(self) -> None:
        raise ValueError("it was told to")

    async def leave(self) -> None:
        self.deactivate()


def check_lives(stage: Stage, key: str) -> int:
    """One life follows another, whole, or fails to begin; how many there were."""
    lives = [line.removeprefix(f"{key} ") for line in stage.lines if line.startswith(f"{key} ")]
    follows = {"begins": {"began", "begins"}, "began": {"ends"}, "ends": {"ended"}, "ended": {"begins"}}
    assert all(later in follows[earlier] for earlier, later in pairwise(lives)), lives
    return lives.count("began")


@pytest.mark.parametrize("seed", range(3))
async def test_S061_calls_right_after_an_end_run_on_the_next_activation_and_never_fail(
    cluster: Cluster, stage: Stage, seed: int
) -> None:
    silos = await cluster.start("a", "b", "c", kinds=(Phoenix,))
    clients = [await cluster.client() for _ in range(5)]

    async def use(phoenix: Phoenix) -> list[bool]:
        worked: list[bool] = []
        for _ in range(100):
            await phoenix.leave()
            worked.append(await phoenix.work())
        return worked

    callers = [*(silo.grain(Phoenix, "k") for silo in silos), *(client.grain(Phoenix, "k") for client in clients)]
    for worked in await asyncio.gather(*(use(caller) for caller in callers)):
        assert worked == [True] * 100
    assert check_lives(stage, "k") > 100


@pytest.mark.parametrize("seed", range(3))
async def test_S062_a_storm_of_starts_failures_and_ends_leaves_one_activation_at_a_time(
    stage: Stage, seed: int
) -> None:
    stand = MemoryStand()
    cluster = Cluster(stand)
    silos = await cluster.start("a", "b", "c", kinds=(Phoenix,))
    keys = [f"{kind} {number}" for kind in ("sound", "frail") for number in range(10)]
    ended: Tally[str] = Tally()

    async def storm(silo_number: int) -> None:
        for _ in range(40):
            phoenix = with_timeout(silos[silo_number].grain(Phoenix, rng.choice(keys)), 10.0)
            try:
                await rng.choice((phoenix.work, phoenix.work, phoenix.fail, phoenix.leave))()
            except (SiloError, ValueError) as error:
                ended[type(error).__name__] += 1
            else:
                ended["answered"] += 1

    await asyncio.gather(*(storm(number % 3) for number in range(30)))
    assert {"answered", "ValueError", "ActivationFailed"} <= set(ended)
    assert set(ended) <= {"answered", "ValueError", "ActivationFailed", "ActivationDamped"}
    assert sum(check_lives(stage, key) for key in keys) > 100
    for silo in silos:
        for activation in silo.runtime.catalog:
            await cluster.seen(lambda: activation.turns.is_idle)  # noqa: B023 - awaited here
    await asyncio.sleep(1.0)
    living = {(each.id, each.activation_id) for silo in silos for each in silo.runtime.catalog}
    assert {(entry.grain, entry.activation) for entry in stand.rows.all()} == living
    await cluster.close()


async def test_S062_a_grain_that_fails_to_start_is_tried_again_by_calls_alone_and_harms_no_other(
    cluster: Cluster, stage: Stage
) -> None:
    silos = await cluster.start("a", "b", "c", kinds=(Sick, Phoenix))
    loop = asyncio.get_running_loop()
    slowest = 0.0
    for _ in range(50):
        calls = [asyncio.create_task(silo.grain(Sick, "always error").turn()) for silo in silos for _ in range(5)]
        began = loop.time()
        assert await silos[0].grain(Phoenix, "sound").work()
        slowest = max(slowest, loop.time() - began)
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in ended} <= {ActivationFailed, ActivationDamped}
    tried = len(stage.lines)
    assert tried <= 50 * len(silos) + 2
    await asyncio.sleep(60.0)
    assert len(stage.lines) == tried
    assert slowest < 0.05


async def test_S062_a_grain_that_fails_again_and_again_is_tried_less_and_less_and_says_when_next(
    cluster: Cluster, stage: Stage
) -> None:
    silos = await cluster.start("a", "b", kinds=(Sick, Phoenix))
    sick = with_hint(silos[0].grain(Sick, "always error"), "b")
    loop = asyncio.get_running_loop()
    ends_at, damped = loop.time() + 30.0, 0
    while loop.time() < ends_at:
        began = loop.time()
        with pytest.raises(ActivationFailed) as failed:
            await sick.turn()
        if isinstance(failed.value, ActivationDamped):
            damped += 1
            assert 0.0 < failed.value.retry_after_s <= PAUSE_LAST_S
            assert loop.time() - began < 0.05
        await asyncio.sleep(0.01)
    assert damped > 1000
    assert 6 < len(stage.lines) <= FREE_TRIES + math.log2(PAUSE_LAST_S / PAUSE_FIRST_S) + 30.0 / PAUSE_LAST_S + 2
    assert await with_hint(silos[0].grain(Phoenix, "sound"), "b").work()


async def test_S062_one_start_that_succeeds_forgives_all_that_failed(cluster: Cluster, stage: Stage) -> None:
    (silo,) = await cluster.start("a", kinds=(Sick,))
    sick = silo.grain(Sick, "error")
    for _ in range(FREE_TRIES):
        with pytest.raises(ActivationFailed):
            await sick.turn()
    assert await sick.turn() == "a"
    assert len(vars(silo.runtime.catalog.beginnings)["_damping"]) == 0


# ---------------------------------------------------------------------------------------------------------- idle grains

LOOKED_FOR = ActivationSettings(collect_every_s=0.5)


@pytest.mark.parametrize("limit", [0, -1, -math.inf, math.nan, timedelta(0), timedelta(days=-1)])
def test_S063_a_limit_of_idleness_that_is_none_is_refused_where_it_is_written(limit: float | timedelta) -> None:
    with pytest.raises(InvalidGrain):

        @grain(kind="odd", collect_after=limit)
        class Odd(Grain):
            """Never made."""

    if isinstance(limit, float | int):
        with pytest.raises(InvalidSettings):
            ActivationSettings(collect_after_s=limit)


@grain(kind="brief", collect_after=0.001)
class Brief(Grain):
    async def touch(self) -> None: ...


@grain(kind="patient.of.years", collect_after=timedelta(days=400))
class OfYears(Grain):
    async def touch(self) -> None: ...


@grain(kind="patient.for.ever", collect_after=timedelta.max)
class ForEver(Grain):
    async def touch(self) -> None: ...


@grain(kind="ordinary.idler", collect_after=2.0)
class Idler(Grain):
    async def touch(self) -> None: ...

    async def on_deactivate(self) -> None:
        say("collected")


async def test_S063_the_longest_and_the_shortest_limits_keep_the_collector_going(cluster: Cluster) -> None:
    await cluster.start("a", kinds=(Brief, OfYears, ForEver, Idler), activation=LOOKED_FOR)
    client = await cluster.client()
    kinds: tuple[type[Brief | OfYears | ForEver | Idler], ...] = (OfYears, ForEver, Brief, Idler)
    grains = {kind: client.grain(kind, "k") for kind in kinds}
    for each in grains.values():
        await each.touch()
    await asyncio.sleep(1.0)
    assert [cluster.is_active(each) for each in grains.values()] == [True, True, False, True]
    await asyncio.sleep(1.6)
    assert [cluster.is_active(each) for each in grains.values()] == [True, True, False, False]


async def test_S063_a_steady_caller_just_within_the_limit_never_sees_an_end(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Idler,), activation=LOOKED_FOR)
    client = await cluster.client()
    idler = client.grain(Idler, "k")
    for _ in range(500):
        await idler.touch()
        await asyncio.sleep(1.99)
    assert stage.lines == []
    await asyncio.sleep(0.6)
    assert stage.lines == ["collected"]


async def test_S064_the_collector_passes_over_grains_with_work_and_bears_to_find_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    @grain(kind="worker.at.random", collect_after=0.3)
    class Worker(Grain):
        async def work(self) -> str:
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            return self.key

    begin = Catalog.begin_deactivation
    collected = 0

    def checked(catalog: Catalog, activation: Activation, reason: DeactivationReason) -> None:
        nonlocal collected
        assert reason is DeactivationReason.IDLE
        assert activation.turns.is_idle
        assert activation.turns.waiting_count == 0
        collected += 1
        begin(catalog, activation, reason)

    monkeypatch.setattr(Catalog, "begin_deactivation", checked)
    await cluster.start("a", "b", kinds=(Worker,), activation=ActivationSettings(collect_every_s=0.05))
    client = await cluster.client()
    await asyncio.sleep(1.0)
    assert collected == 0

    async def use() -> None:
        for _ in range(40):
            key = str(rng.randrange(300))
            assert await client.grain(Worker, key).work() == key
            await asyncio.sleep(rng.uniform(0.0, 0.1))

    await asyncio.gather(*(use() for _ in range(100)))
    assert collected > 100
    await asyncio.sleep(1.0)
    assert [silo.activations() for silo in cluster.silos.values()] == [[], []]


# -------------------------------------------------------------------------------------------------- what is left behind


@grain(kind="careless", collect_after=1.0)
class Careless(Grain):
    """Starts a task in its turn and forgets it."""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def touch(self) -> None: ...

    async def note(self) -> None:
        say("noted")

    async def _go_on(self) -> None:
        while True:
            try:
                await self.grain(Careless, "log").note()
            except GrainMoved:
                say("refused")
                return
            await asyncio.sleep(0.25)


async def test_S065_a_task_that_was_left_behind_reaches_nobody_once_its_activation_has_ended(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Careless,), activation=LOOKED_FOR)
    client = await cluster.client()
    careless = client.grain(Careless, "k")
    await careless.start()
    await cluster.seen(lambda: not cluster.is_active(careless))  # its task kept it from nothing
    await stage.heard("refused")
    assert stage.lines.count("noted") >= 4
    noted = len(stage.lines)
    await asyncio.sleep(2.0)
    assert len(stage.lines) == noted
    await careless.touch()
