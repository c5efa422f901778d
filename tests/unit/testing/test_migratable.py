"""`check_migratable`: what a move changes for a grain's callers is found, with the call, the mode and the remedy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from silo.grain import Grain, grain, read_only, soft_state
from silo.reference import with_timeout
from silo.testing import NotMigratable, check_migratable
from silo.testing.migratable import MOVED_ALONE_MAX, modes
from tests.unit.testing.kit_grains import Lodge, Postman, Room, Tally


async def visit(room: Room) -> list[str]:
    """Calls one after the other, at once, and in vain."""
    await room.enter("ada")
    await asyncio.gather(room.enter("grace", 0.1), room.enter("alan"), room.players())
    with pytest.raises(ValueError, match="the room says no"):
        await with_timeout(room, 5.0).fail()
    return await room.players()


@pytest.mark.parametrize("kind", [Room, Lodge])
def test_a_grain_whose_state_travels_passes(kind: type[Room]) -> None:
    check_migratable(kind, visit)


def test_a_grain_that_calls_others_passes_with_them() -> None:
    async def script(postman: Postman) -> int:
        await postman.deliver("lobby", ["ada"])
        return await postman.deliver("lobby", ["grace", "alan"])

    check_migratable(Postman, script, kinds=[Room])


def test_state_that_does_not_travel_is_named_with_its_remedy() -> None:
    async def script(tally: Tally) -> int:
        await tally.add(5)
        await tally.add(7)
        return await tally.counted()

    with pytest.raises(NotMigratable) as raised:
        check_migratable(Tally, script)
    found = raised.value
    assert (found.call, found.mode, found.lost) == (3, "moved before call 2", ("count",))
    assert str(found).splitlines() == [
        "Tally is not the same to its callers wherever it is: call 3, counted() ended otherwise",
        "  local:               2",
        "  moved before call 2: 1",
        "`count` is a plain attribute: declare it with soft_state, as in count: int = soft_state(default=…)",
    ]


@grain(kind="diary")
class Diary(Grain):
    """Forgets a list, and raises where it is empty."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def write(self, line: str) -> None:
        self.lines.append(line)

    async def last(self) -> str:
        if not self.lines:
            raise LookupError("nothing was written")
        return self.lines[-1]


def test_a_call_that_raises_elsewhere_is_a_difference_too() -> None:
    async def script(diary: Diary) -> str:
        await diary.write("dear diary")
        return await diary.last()

    with pytest.raises(NotMigratable) as raised:
        check_migratable(Diary, script)
    assert str(raised.value).splitlines()[1:] == [
        "  local:               'dear diary'",
        "  moved before call 2: raised LookupError: nothing was written",
        "`lines` is a plain attribute: declare it with soft_state,"
        " as in lines: list = soft_state(default_factory=list)",
    ]


@grain(kind="homebody")
class Homebody(Grain):
    async def where(self) -> str:
        return self.silo


def test_a_result_that_depends_on_the_place_is_found_without_a_move() -> None:
    with pytest.raises(NotMigratable, match="call 1, where\\(\\)") as raised:
        check_migratable(Homebody, lambda homebody: homebody.where())
    assert (raised.value.mode, raised.value.lost) == ("remote", ())
    assert "'silo-1'" in str(raised.value)
    assert "'silo-2'" in str(raised.value)


@grain(kind="secretive")
class Secretive(Grain):
    """Holds something that cannot travel."""

    held: Any = soft_state(default=None)

    async def hold(self) -> None:
        self.held = asyncio.Lock()

    @read_only
    async def holds(self) -> bool:
        return self.held is not None


def test_a_grain_that_cannot_be_moved_is_told_with_the_reason() -> None:
    async def script(secretive: Secretive) -> bool:
        await secretive.hold()
        return await secretive.holds()

    with pytest.raises(NotMigratable, match=r"Secretive could not be moved .*at call 2.*Lock") as raised:
        check_migratable(Secretive, script)
    assert raised.value.call == 2


@grain(kind="mayfly")
class Mayfly(Grain):
    """Lives for one call."""

    async def fly(self) -> None:
        await asyncio.sleep(0.1)
        self.deactivate()


def test_a_script_whose_grain_was_never_moved_shows_nothing() -> None:
    async def script(room: Room) -> None:
        assert room.key == "under-test"  # makes no call

    with pytest.raises(NotMigratable, match="Room was not active whenever it was to be moved"):
        check_migratable(Room, script)


def test_a_grain_that_goes_by_itself_is_moved_while_it_lives() -> None:
    async def script(mayfly: Mayfly) -> None:
        await mayfly.fly()
        await mayfly.fly()

    check_migratable(Mayfly, script)


def test_what_the_script_returns_is_compared() -> None:
    ran: list[int] = []

    async def script(room: Room) -> int:
        await room.enter("ada")
        ran.append(1)
        return len(ran)

    with pytest.raises(NotMigratable, match="the script's result ended otherwise") as raised:
        check_migratable(Room, script)
    assert (raised.value.call, raised.value.mode) == (0, "remote")


def test_a_script_that_makes_other_calls_is_found() -> None:
    ran: list[int] = []

    async def script(room: Room) -> None:
        ran.append(1)
        await room.enter(f"guest {len(ran)}")

    with pytest.raises(NotMigratable, match=r"enter\('guest 1'\)"):
        check_migratable(Room, script)


def test_a_script_that_fails_where_nothing_moves_fails_as_it_is() -> None:
    async def script(room: Room) -> None:
        assert await room.enter("ada") == 2, "the script is wrong"

    with pytest.raises(AssertionError, match="the script is wrong"):
        check_migratable(Room, script)


def test_a_short_script_is_moved_in_each_place_alone_and_a_long_one_in_all_at_once() -> None:
    assert [mode.name for mode in modes(3)] == [
        "remote",
        "moved before call 2",
        "moved before call 3",
        "moved before every call",
        "moved during every call",
    ]
    assert len(list(modes(MOVED_ALONE_MAX + 1))) == 3
