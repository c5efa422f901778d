"""Persistent state, as grains and their callers see it: what was written is there after whatever happened."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from silo.directory.errors import ActivationFailed, GrainMoved, InvalidSettings, SerializationError, StateTooLarge
from silo.grain import Grain, grain, read_only, soft_state
from silo.grain_context import OutsideGrain
from silo.host import Silo
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.migration.outcome import MoveStatus
from silo.persistence.contract import Claim
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.reference import grain_id
from silo.settings import ActivationSettings
from tests.cluster.clusters import Cluster, MemoryStand
from tests.cluster.stage import Stage, gate, say

pytestmark = pytest.mark.real

G = TypeVar("G")


class Rank(enum.Enum):
    """Part of a value, and known to nobody but by its mention."""

    NOVICE = 1
    MASTER = 2


@dataclass
class Profile:
    """What players keep."""

    name: str = ""
    rank: Rank = Rank.NOVICE
    seen: set[int] = field(default_factory=set[int])


@grain(kind="player")
class Player(Grain):
    """Has two states, and soft state beside them."""

    profile: Persistent[Profile] = persistent(Profile)
    _visits: Persistent[int] = persistent(name="visits")
    remark: str = soft_state(default="")

    def __init__(self) -> None:
        try:
            self.profile.value = Profile("too early")
        except OutsideGrain:
            say(f"{self.key} finds nothing in __init__")

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"{self.key} activates with {self.profile.value.name!r}")

    async def rename(self, name: str, seen: int = 0) -> str | None:
        self.profile.value.name = name
        self.profile.value.rank = Rank.MASTER
        self.profile.value.seen.add(seen)
        await self.profile.write()
        return self.profile.etag

    async def rename_unsaved(self, name: str) -> None:
        self.profile.value.name = name

    async def visit(self) -> int:
        self._visits.value += 1
        await self._visits.write()
        return self._visits.value

    async def save(self) -> None:
        await self.profile.write()

    async def reload(self) -> str:
        await self.profile.read()
        return self.profile.value.name

    async def forget(self) -> None:
        await self.profile.clear()

    async def store(self, value: Any) -> None:
        self.profile.value = value
        await self.profile.write()

    async def leave(self) -> None:
        self.deactivate()

    async def assign(self) -> None:
        self.profile = Profile()  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - the mistake

    @read_only
    async def look(self) -> tuple[Profile, int, bool, str | None]:
        return self.profile.value, self._visits.value, self.profile.exists, self.profile.etag


async def gone(cluster: Cluster, grain: Any) -> None:
    await cluster.seen(lambda: not cluster.is_active(grain))


async def crash(cluster: Cluster, home: str, kind: type[G], key: str) -> G:
    """End a silo as a crash would, until all know; the grain, as called from a silo that is left."""
    lost = cluster.silos[home].address
    await cluster.kill(home)
    await cluster.seen(lambda: all(silo.view.is_dead(lost) for silo in cluster.silos.values()))
    return next(iter(cluster.silos.values())).grain(kind, key)


async def test_a_grain_for_which_nothing_is_stored_starts_from_the_default(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    assert await ada.look() == (Profile(), 0, False, None)
    assert stage.lines == ["ada finds nothing in __init__", "ada activates with ''"]


async def test_what_was_written_is_there_before_on_activate_of_the_next_activation(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("one", "two", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    etag = await ada.rename("Ada", 7)
    assert await ada.visit() == 1
    assert (await ada.look())[2:] == (True, etag)
    await ada.leave()
    await gone(cluster, ada)
    assert await ada.look() == (Profile("Ada", Rank.MASTER, {7}), 1, True, etag)
    assert "ada activates with 'Ada'" in stage.lines


async def test_what_was_not_written_is_not_there(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    await ada.rename("Ada")
    await ada.rename_unsaved("Augusta")
    assert (await ada.look())[0].name == "Augusta"
    assert await ada.reload() == "Ada"
    await ada.rename_unsaved("Augusta")
    await ada.leave()
    await gone(cluster, ada)
    assert (await ada.look())[0].name == "Ada"


@pytest.mark.in_memory
async def test_R429_a_crash_loses_nothing_that_was_written(cluster: Cluster) -> None:
    await cluster.start("one", "two", "three", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    etags = [await ada.rename(name) for name in ("a", "b", "c")]
    ada = await crash(cluster, cluster.home(ada), Player, "ada")
    assert await ada.look() == (Profile("c", Rank.MASTER, {0}), 0, True, etags[-1])
    assert await ada.rename("d") not in etags


async def test_each_write_has_an_etag_of_its_own(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    etags = {await ada.rename("Ada") for _ in range(5)}
    assert len(etags) == 5


async def test_a_cleared_state_starts_from_the_default_and_can_be_written_again(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    await ada.rename("Ada")
    await ada.visit()
    await ada.forget()
    assert await ada.look() == (Profile(), 1, False, None)
    await ada.leave()
    await gone(cluster, ada)
    assert await ada.look() == (Profile(), 1, False, None)
    await ada.rename("Ada")
    await ada.leave()
    await gone(cluster, ada)
    assert (await ada.look())[0].name == "Ada"


@pytest.mark.in_memory
async def test_R406_R439_a_move_carries_state_and_etag_and_reads_nothing(cluster: Cluster, stage: Stage) -> None:
    assert isinstance(cluster.stand, MemoryStand)
    await cluster.start("one", "two", kinds=(Player,))
    client = await cluster.client()
    ada = client.grain(Player, "ada")
    etag = await ada.rename("Ada")
    await ada.rename_unsaved("Augusta")
    cluster.stand.storage_calls.clear()
    for _ in range(4):
        moved = await client.migrate(ada, to=cluster.elsewhere(ada))
        assert moved.status is MoveStatus.MOVED, moved
        assert await ada.look() == (Profile("Augusta", Rank.MASTER, {0}), 0, True, etag)
    assert cluster.stand.storage_calls == []
    await ada.save()  # under the etag that it came with
    assert await ada.visit() == 1
    assert cluster.stand.storage_calls == ["write", "write"]
    await ada.leave()
    await gone(cluster, ada)
    assert (await ada.look())[0].name == "Augusta"


@pytest.mark.in_memory
async def test_a_grain_that_moves_about_goes_on_writing(cluster: Cluster) -> None:
    await cluster.start("one", "two", kinds=(Player,))
    client = await cluster.client()
    ada = client.grain(Player, "ada")
    for visit in range(1, 6):
        assert await ada.visit() == visit
        assert (await client.migrate(ada, to=cluster.elsewhere(ada))).moved
    ada = await crash(cluster, cluster.home(ada), Player, "ada")
    assert await ada.visit() == 6


async def test_a_value_that_cannot_be_stored_is_refused_and_nothing_is_written(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Player,), activation=ActivationSettings(state_bytes_max=1000))
    ada = (await cluster.client()).grain(Player, "ada")
    etag = await ada.rename("Ada")
    with pytest.raises(StateTooLarge) as refused:
        await ada.store("x" * 1000)
    assert (refused.value.size, refused.value.limit) == (1003, 1000)
    assert await ada.reload() == "Ada"
    assert await ada.rename("Augusta") != etag


async def test_setting_the_attribute_itself_is_a_mistake_and_says_so(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    with pytest.raises(AttributeError, match=r"self\.profile\.value"):
        await ada.assign()


class Unregistered:
    """Travels nowhere."""


@grain(kind="holder")
class Holder(Grain):
    """Tries to store what cannot be stored."""

    state: Persistent[Any] = persistent(lambda: None)

    async def store_unregistered(self) -> None:
        self.state.value = Unregistered()
        await self.state.write()

    async def store(self, value: object) -> None:
        self.state.value = value
        await self.state.write()

    async def stored(self) -> object:
        return self.state.value

    async def keep(self, other: Player) -> None:
        self.state.value = other
        await self.state.write()

    async def rename_kept(self, name: str) -> None:
        await self.state.value.rename(name)

    async def leave(self) -> None:
        self.deactivate()


async def test_only_what_the_codec_knows_is_stored(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Holder,))
    holder = (await cluster.client()).grain(Holder, "h")
    with pytest.raises(SerializationError, match="Unregistered"):
        await holder.store_unregistered()
    await holder.store((1, {2}))
    await holder.leave()
    await gone(cluster, holder)
    assert await holder.stored() == (1, {2})


async def test_a_reference_can_be_stored(cluster: Cluster) -> None:
    await cluster.start("one", kinds=(Holder, Player))
    client = await cluster.client()
    await client.grain(Holder, "h").keep(client.grain(Player, "ada"))
    await client.grain(Holder, "h").leave()
    await gone(cluster, client.grain(Holder, "h"))
    await client.grain(Holder, "h").rename_kept("Ada")
    assert (await client.grain(Player, "ada").look())[0].name == "Ada"


@grain(kind="saver")
class Saver(Grain):
    """Saves where hooks run, and where it should not."""

    log: Persistent[list[str]] = persistent(list)

    async def on_activate(self, reason: ActivationReason) -> None:
        self.log.value.append(f"activated by {reason}")
        await self.log.write()

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        self.log.value.append(f"deactivated by {reason}")
        await self.log.write()
        say("saved")

    async def lines(self) -> list[str]:
        return self.log.value

    async def leave(self) -> None:
        self.deactivate()

    async def leave_a_writer_behind(self, gate_name: str) -> None:
        async def write() -> None:
            await gate(gate_name)
            try:
                self.log.value.append("late")
                await self.log.write()
            except GrainMoved:
                say("the late writer was refused")

        self.writer = asyncio.create_task(write())


async def test_hooks_may_write(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("one", "two", kinds=(Saver,))
    client = await cluster.client()
    saver = client.grain(Saver, "s")
    wanted = ["activated by call"]
    assert await saver.lines() == wanted
    assert (await client.migrate(saver, to=cluster.elsewhere(saver))).moved
    wanted += ["deactivated by migrating", "activated by migration"]
    assert await saver.lines() == wanted
    await saver.leave()
    await gone(cluster, saver)
    wanted += ["deactivated by application", "activated by call"]
    assert await saver.lines() == wanted


@pytest.mark.parametrize("moves", [True, False])
async def test_what_an_activation_has_left_behind_writes_nothing(cluster: Cluster, stage: Stage, moves: bool) -> None:
    await cluster.start("one", "two", kinds=(Saver,))
    client = await cluster.client()
    saver = client.grain(Saver, "s")
    await saver.leave_a_writer_behind("late")
    if moves:
        assert (await client.migrate(saver, to=cluster.elsewhere(saver))).moved
        await saver.lines()
    else:
        await saver.leave()
        await gone(cluster, saver)
    stage.gate("late").open()
    await stage.heard("the late writer was refused")
    await saver.leave()
    await gone(cluster, saver)
    assert "late" not in await saver.lines()


@pytest.mark.in_memory
async def test_a_lost_directory_gives_epochs_above_those_that_the_storage_has_seen(cluster: Cluster) -> None:
    """The floor of DESIGN 6: a state that is read says which epochs its grain has had."""
    assert isinstance(cluster.stand, MemoryStand)
    await cluster.start("one", kinds=(Player,))
    ada = (await cluster.client()).grain(Player, "ada")
    etag = await ada.rename("Ada")
    await ada.leave()
    await gone(cluster, ada)
    known = 10**9
    cluster.stand.storage_rows.read(Claim(grain_id(ada), known, "of a directory that was lost"), ["profile"])
    assert (await ada.look())[3] == etag
    assert cluster.activation(ada).epoch == known + 1
    await ada.rename("Augusta")


@pytest.mark.in_memory
async def test_a_kind_with_persistent_state_needs_a_storage(cluster: Cluster) -> None:
    settings = cluster.stand.settings("one")
    bare = dataclasses.replace(cluster.stand.surroundings(settings), open_storage=None)
    with pytest.raises(InvalidSettings, match="no storage"):
        Silo(Player, settings=settings, surroundings=bare)


@pytest.mark.in_memory
async def test_a_storage_that_ends_as_cancelled_fails_the_activation_and_leaves_no_call_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(_call: str) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(cluster.stand, "storage_asked", cancelled)
    (a,) = await cluster.start("a", kinds=(Player,))
    player = a.grain(Player, "ada")
    with pytest.raises(ActivationFailed, match="CancelledError"):
        await player.visit()
    await cluster.seen(lambda: not cluster.is_active(player))
    assert a.runtime.catalog.places.in_flight == 0
