"""Moves in small clusters in memory, and what befalls them half-way: the shells around the handover protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from silo.directory.addresses import Entry
from silo.directory.contract import Registration
from silo.directory.errors import DirectoryUnavailable, OutcomeUnknown
from silo.grain import Grain, grain, soft_state
from silo.host import Silo
from silo.kinds import kind_of
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.outcome import MigrationOutcome, MoveStatus
from silo.reference import grain_id, with_hint, with_timeout
from silo.settings import MigrationSettings
from tests.cluster.stage import gate, pass_by, say, stage
from tests.support.memory_cluster import Scene, told


@grain(kind="box", drain_timeout=60.0)
class Box(Grain):
    """Keeps things, and stops wherever the test wants it to."""

    things: list[str] = soft_state(default_factory=list)

    async def on_migrating(self, notice: MigrationNotice) -> None:
        await pass_by("migrating")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"deactivated at {self.silo}")

    async def on_activate(self, reason: ActivationReason) -> None:
        await pass_by(f"activate at {self.silo}")
        if f"fail at {self.silo}" in stage().lines:
            raise RuntimeError("not here")
        say(f"activated at {self.silo}: {reason}")

    async def put(self, thing: str) -> str:
        self.things.append(thing)
        return self.silo

    async def wait(self, what: str) -> str:
        say(f"began {what}")
        await gate(what)
        return self.silo

    async def look(self) -> list[str]:
        return self.things


@grain(kind="hasty", on_busy="interrupt")
class Hasty(Grain):
    async def wait(self) -> None:
        say("began")
        await gate("never")

    async def where(self) -> str:
        return self.silo


KINDS = (Box, Hasty)
ABC = ("a", "b", "c")


async def box_at(scene: Scene, silo: str, caller: str = "c") -> Box:
    box = scene.silo(caller).grain(Box, "k")
    await with_hint(box, silo).put("first")
    assert scene.cluster.home(box) == silo
    return box


def move(scene: Scene, box: Box, to: str, by: str = "c") -> asyncio.Task[MigrationOutcome]:
    return asyncio.create_task(scene.silo(by).migrate(box, to=to))


async def committed(scene: Scene, box: Box) -> None:
    """Wait until the target holds the entry, does not open yet, and the source knows."""
    await scene.stage.stopped("activate at b")
    await scene.cluster.seen(lambda: scene.silo("a").runtime.catalog.get(grain_id(box)) is None)


async def half_way(scene: Scene, *, fails: bool = False) -> tuple[Box, asyncio.Task[MigrationOutcome]]:
    """A box on its way from a to b that b has taken, and has not opened yet; where it `fails`, it never will."""
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    if fails:
        say("fail at b")
    scene.stage.stop_at("activate at b")
    moving = move(scene, box, "b")
    await committed(scene, box)
    return box, moving


@told
async def test_a_move_whose_drain_takes_too_long_leaves_the_grain_as_it_was(scene: Scene) -> None:
    @grain(kind="box", drain_timeout=1.0)
    class Impatient(Box):
        pass

    await scene.start(*ABC, kinds=(Impatient,))
    box = await box_at(scene, "a")
    running = asyncio.create_task(box.wait("go"))
    await scene.stage.heard("began go")
    outcome = await move(scene, box, "b")
    assert (outcome.status, "within 1.0 s" in outcome.why) == (MoveStatus.ABORTED, True)
    scene.stage.gate("go").open()
    assert await running == "a"
    assert await box.put("second") == "a"
    assert (await move(scene, box, "b")).moved  # the end of the drain that was given up has closed nothing
    assert await box.look() == ["first", "second"]


@told
async def test_a_grain_may_take_longer_over_its_notice_than_a_target_over_its_answer(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS, migration=MigrationSettings(ask_timeout_s=0.5))
    box = await box_at(scene, "a")
    scene.stage.stop_at("migrating")
    moving = move(scene, box, "b")
    await scene.stage.stopped("migrating")
    await asyncio.sleep(2.0)
    assert await box.put("meanwhile") == "a"
    scene.stage.gate("migrating").open()
    assert (await moving).moved
    assert await box.look() == ["first", "meanwhile"]


@told
async def test_a_move_given_up_during_its_notice_does_not_stop_the_grain_afterwards(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    scene.stage.stop_at("migrating")
    moving = move(scene, box, "b")
    await scene.stage.stopped("migrating")
    await scene.cluster.kill("b")
    assert (await moving).status is MoveStatus.ABORTED
    scene.stage.gate("migrating").open()
    await asyncio.sleep(1.0)
    assert await box.put("second") == "a"


@told
async def test_a_move_may_be_given_another_target_while_it_drains(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS, migration=MigrationSettings(ask_timeout_s=0.5))
    box = await box_at(scene, "a")
    running = asyncio.create_task(box.wait("go"))
    await scene.stage.heard("began go")
    first = move(scene, box, "b")
    await scene.cluster.draining(box)
    second = move(scene, box, "c")
    await asyncio.sleep(2.0)
    scene.stage.gate("go").open()
    outcomes = await asyncio.gather(first, second)
    assert [outcome.target_name for outcome in outcomes] == ["c", "c"]
    assert await running == "a"
    assert await box.look() == ["first"]


@told
async def test_a_grain_that_cannot_open_at_its_target_comes_back_with_its_state_and_its_calls(scene: Scene) -> None:
    box, moving = await half_way(scene, fails=True)
    waiting = [asyncio.create_task(scene.silo(name).grain(Box, "k").put(name)) for name in ABC]
    await asyncio.sleep(0.1)
    scene.stage.gate("activate at b").open()
    outcome = await moving
    assert (outcome.status, "not here" in outcome.why) == (MoveStatus.ABORTED, True)
    assert set(await asyncio.gather(*waiting)) == {"a"}
    assert sorted(await box.look()) == ["a", "b", "c", "first"]
    entry = await scene.cluster.entry(box)
    assert entry is not None
    assert entry.silo == scene.silo("a").address
    assert scene.cluster.activation(box).entry == entry


@told
async def test_it_comes_back_though_the_link_is_lost_before_the_target_says_so(scene: Scene) -> None:
    box, moving = await half_way(scene, fails=True)
    scene.stand.network.cut("a", "b")
    scene.stage.gate("activate at b").open()
    await asyncio.sleep(15.0)  # it gives the grain back, and the link on which it says so is lost
    scene.stand.network.heal()
    assert (await moving).status is MoveStatus.ABORTED
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]


@told
async def test_a_call_that_finds_the_grain_given_back_brings_it_back(scene: Scene) -> None:
    box, moving = await half_way(scene, fails=True)
    scene.stand.network.cut("a", "b")
    scene.stage.gate("activate at b").open()
    await asyncio.sleep(0.5)
    scene.silo("a").runtime.cache.forget_grain(grain_id(box))
    assert await with_timeout(scene.silo("a").grain(Box, "k"), 1.0).put("second") == "a"
    scene.stand.network.heal()
    assert (await moving).status is MoveStatus.ABORTED
    assert await box.look() == ["first", "second"]


@told
async def test_a_new_activation_that_finds_the_grain_given_back_makes_way_for_it(scene: Scene) -> None:
    box, moving = await half_way(scene, fails=True)
    scene.stand.network.cut("a", "b")
    scene.stage.gate("activate at b").open()
    await asyncio.sleep(0.5)
    catalog = scene.silo("a").runtime.catalog
    catalog.activate(grain_id(box), kind_of(Box), None)  # as when another silo places the grain here
    await scene.cluster.seen(lambda: scene.stage.lines.count("activated at a: migration_aborted") == 1)
    scene.stand.network.heal()
    assert (await moving).status is MoveStatus.ABORTED
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]


@told
async def test_R430_a_target_that_dies_between_the_commit_and_its_opening_costs_neither_state_nor_queue(
    scene: Scene,
) -> None:
    box, moving = await half_way(scene)
    await scene.cluster.kill("b")
    outcome = await moving
    assert (outcome.status, "b" in outcome.why) == (MoveStatus.ABORTED, True)
    assert scene.silo("a").runtime.moves.leaving_count == 0
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]
    entry = await scene.cluster.entry(box)
    assert entry is not None
    assert scene.cluster.activation(box).entry == entry
    assert entry.epoch > 2  # above the one of the target that died


@told
async def test_a_call_at_the_source_of_a_move_whose_target_died_waits_for_what_the_source_takes_back(
    scene: Scene,
) -> None:
    _, moving = await half_way(scene)
    a, dead = scene.silo("a"), scene.silo("b").address
    register, asked = a.runtime.registrar.register, asyncio.Event()

    async def register_later(registration: Registration) -> Entry | None:
        asked.set()
        await gate("the directory")
        return await register(registration)

    with patch.object(a.runtime.registrar, "register", register_later):
        await scene.cluster.kill("b")
        await asked.wait()
        assert a.view.is_dead(dead)
        local = asyncio.create_task(with_hint(a.grain(Box, "k"), "a").put("local"))
        placed = asyncio.create_task(with_hint(scene.silo("c").grain(Box, "k"), "a").put("placed here"))
        await asyncio.sleep(1.0)
        scene.stage.gate("the directory").open()
        assert (await moving).status is MoveStatus.ABORTED
        assert (await local, await placed) == ("a", "a")
    assert sorted(await a.grain(Box, "k").look()) == ["first", "local", "placed here"]


@told
async def test_a_source_that_comes_second_to_a_target_that_died_yields_and_its_calls_go_to_the_first(
    scene: Scene,
) -> None:
    box, moving = await half_way(scene)
    entry = await scene.cluster.entry(box)
    assert entry is not None
    first = scene.stand.rows.register(
        Registration(grain_id(box), scene.silo("c").address, "the first", entry, entry.epoch)
    )
    await scene.cluster.kill("b")
    outcome = await moving
    assert (outcome.status, str(first) in outcome.why) == (MoveStatus.LOST, True)
    assert await scene.silo("a").grain(Box, "k").put("second") == "c"


@told
async def test_a_directory_that_fails_a_fence_in_a_way_that_nobody_foresaw_leaves_no_move_waiting(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS, migration=MigrationSettings(offer_timeout_s=1.0))
    box = await box_at(scene, "a")
    scene.stand.without_directory.add("b")
    with patch.object(scene.silo("a").runtime.registrar, "register", AsyncMock(side_effect=RuntimeError("a mistake"))):
        moving = move(scene, box, "b")
        outcome = await moving
    assert (outcome.status, "a mistake" in outcome.why) == (MoveStatus.LOST, True)
    assert scene.silo("a").runtime.moves.leaving_count == 0
    scene.stand.without_directory.clear()
    assert await box.put("second") in ("a", "b", "c")


@told
async def test_a_target_that_cannot_ask_the_directory_says_so_and_the_source_goes_on(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    with patch.multiple(
        scene.silo("b").runtime.registrar, **both_ways(AsyncMock(side_effect=RuntimeError("a mistake")))
    ):
        assert (await move(scene, box, "b")).status is MoveStatus.ABORTED
    assert scene.silo("b").runtime.moves.arriving_count == 0
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]


@told
async def test_what_a_target_cannot_give_back_the_source_takes_back(scene: Scene) -> None:
    box, moving = await half_way(scene, fails=True)
    with patch.object(scene.silo("b").runtime.registrar, "register", AsyncMock(side_effect=RuntimeError("a mistake"))):
        scene.stage.gate("activate at b").open()
        assert (await moving).status is MoveStatus.ABORTED
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]


@told
async def test_a_source_that_dies_after_its_offer_does_not_take_the_state_with_it(scene: Scene) -> None:
    box, moving = await half_way(scene)
    await scene.cluster.kill("a")
    with pytest.raises(OutcomeUnknown):
        await moving
    scene.stage.gate("activate at b").open()
    assert await box.put("second") == "b"
    assert await box.look() == ["first", "second"]


@told
async def test_an_offer_that_is_not_answered_is_taken_back_by_the_judgement_of_the_directory(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS, migration=MigrationSettings(offer_timeout_s=1.0))
    box = await box_at(scene, "a")
    scene.stand.without_directory.add("b")
    moving = move(scene, box, "b")
    waiting = asyncio.create_task(box.put("second"))
    assert (await moving).status is MoveStatus.ABORTED
    scene.stand.without_directory.clear()
    assert await waiting == "a"
    await scene.cluster.seen(lambda: scene.silo("b").runtime.moves.arriving_count == 0)
    assert await box.look() == ["first", "second"]
    entry = await scene.cluster.entry(box)
    assert scene.cluster.activation(box).entry == entry


@told
async def test_a_silo_drains_what_is_only_arriving_while_it_begins_to(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    scene.stage.stop_at("activate at b")
    moving = move(scene, box, "b")
    await scene.stage.stopped("activate at b")
    began = asyncio.get_running_loop().time()
    stopping = asyncio.create_task(scene.cluster.stop("b"))
    await asyncio.sleep(1.0)
    scene.stage.gate("activate at b").open()
    assert (await moving).moved
    await stopping
    assert asyncio.get_running_loop().time() - began < 3.0
    assert await box.put("second") in ("a", "c")
    assert await box.look() == ["first", "second"]


@told
async def test_a_silo_drains_what_is_only_coming_back_while_it_begins_to(scene: Scene) -> None:
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    say("fail at b")
    scene.stage.stop_at("activate at a")
    moving = move(scene, box, "b")
    await scene.stage.stopped("activate at a")
    assert (await moving).status is MoveStatus.ABORTED
    began = asyncio.get_running_loop().time()
    stopping = asyncio.create_task(scene.cluster.stop("a"))
    await asyncio.sleep(1.0)
    scene.stage.lines.remove("fail at b")
    scene.stage.gate("activate at a").open()
    await stopping
    assert asyncio.get_running_loop().time() - began < 3.0
    assert await box.look() == ["first"]


@told
async def test_a_kind_that_would_be_interrupted_is_and_its_callers_hear_that_the_outcome_is_unknown(
    scene: Scene,
) -> None:
    await scene.start(*ABC, kinds=KINDS)
    hasty = scene.silo("c").grain(Hasty, "k")
    await with_hint(hasty, "a").where()
    running = asyncio.create_task(hasty.wait())
    await scene.stage.heard("began")
    assert (await scene.silo("c").migrate(hasty, to="b")).moved
    with pytest.raises(OutcomeUnknown, match="interrupted"):
        await running
    assert await hasty.where() == "b"


async def outdone_while_it_moves(scene: Scene, by_successor: bool) -> tuple[bool, MigrationOutcome, Box]:
    """A box that moves from a to b is told of another row; whether it stays at a, the outcome of the move, the box."""
    a, b, _ = await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    scene.stage.stop_at("migrating")
    moving = move(scene, box, "b")
    await scene.stage.stopped("migrating")
    activation = a.runtime.catalog.get(grain_id(box))
    assert activation is not None
    assert activation.entry is not None
    entry = activation.entry
    by = activation.move.successor if by_successor else "another"
    a.runtime.catalog.outdone(entry, Entry(entry.grain, b.address, by, entry.epoch + 1))
    stays = a.runtime.catalog.get(grain_id(box)) is activation
    scene.stage.gate("migrating").open()
    return stays, await moving, box


@told
async def test_R434_a_row_of_the_target_of_its_own_move_is_left_to_the_move_to_judge(scene: Scene) -> None:
    """As where the directory was lost: the source says again what it serves, and the target has said so before it."""
    stays, outcome, box = await outdone_while_it_moves(scene, by_successor=True)
    assert (stays, outcome.moved) == (True, True)
    assert await box.look() == ["first"]


@told
async def test_R434_whoever_is_outdone_by_another_activation_yields_though_it_is_moving(scene: Scene) -> None:
    stays, outcome, _ = await outdone_while_it_moves(scene, by_successor=False)
    assert (stays, outcome.moved) == (False, False)


def unheard_at_first(silo: Silo, tries: list[Registration]) -> Callable[[Registration], Awaitable[Entry | None]]:
    """A registrar's `register` whose first answer is lost, while all that the directory has is claimed again."""
    runtime = silo.runtime
    register = runtime.registrar.register

    async def register_unheard(registration: Registration) -> Entry | None:
        tries.append(registration)
        answer = await register(registration)
        if len(tries) > 1:
            return answer
        runtime.lives.doubt()
        await runtime.lives.settled(registration.grain)
        await asyncio.sleep(1.0)  # in which strays are taken away
        raise DirectoryUnavailable("the answer was lost")

    return register_unheard


def both_ways(register: Callable[[Registration], Awaitable[Entry | None]]) -> dict[str, Any]:
    """A registrar's `register`, and a `register_soon` that does the same and calls back."""

    def register_soon(
        registration: Registration, on_answer: Callable[[Entry | Exception | None], None]
    ) -> asyncio.Task[None]:
        async def call_back() -> None:
            answer: Entry | Exception | None
            try:
                answer = await register(registration)
            except Exception as error:
                answer = error
            on_answer(answer)

        return asyncio.create_task(call_back())

    return {"register": register, "register_soon": register_soon}


@told
async def test_R434_a_source_that_has_taken_its_grain_back_and_not_heard_so_is_not_outdone_by_its_own_row(
    scene: Scene,
) -> None:
    await scene.start(*ABC, kinds=KINDS, migration=MigrationSettings(offer_timeout_s=1.0))
    box = await box_at(scene, "a")
    a, tries = scene.silo("a"), list[Registration]()
    scene.stand.without_directory.add("b")
    with patch.object(a.runtime.registrar, "register", unheard_at_first(a, tries)):
        outcome = await move(scene, box, "b")
    scene.stand.without_directory.clear()
    assert (outcome.status, len(tries)) == (MoveStatus.ABORTED, 2)
    assert await box.put("second") == "a"
    assert await box.look() == ["first", "second"]


@told
async def test_R434_a_row_that_was_written_and_not_answered_is_no_stray_when_the_directory_is_made_again(
    scene: Scene,
) -> None:
    """The target of a move has the row and has not heard so: taken away as nobody's, it would take the state along."""
    await scene.start(*ABC, kinds=KINDS)
    box = await box_at(scene, "a")
    b, tries = scene.silo("b"), list[Registration]()
    with patch.multiple(b.runtime.registrar, **both_ways(unheard_at_first(b, tries))):
        outcome = await move(scene, box, "b")
    assert (outcome.moved, len(tries)) == (True, 2)
    assert await box.look() == ["first"]
