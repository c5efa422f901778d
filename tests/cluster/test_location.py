"""Location is invisible: a script gives the same result wherever the grain is, and before, during and after a move."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from silo.grain import Grain, grain, read_only, soft_state
from silo.reference import with_hint
from tests.cluster.clusters import Cluster

pytestmark = pytest.mark.real


class Suit(Enum):
    HEARTS = "h"
    SPADES = "s"


@dataclass
class Card:
    suit: Suit
    rank: int
    notes: list[str] = field(default_factory=list)


@grain(kind="table")
class Table(Grain):
    """Takes in and gives out values of many types."""

    cards: list[Card] = soft_state(default_factory=list)
    seen: dict[str, Any] = soft_state(default_factory=dict)
    turns: int = soft_state(default=0)

    async def deal(self, card: Card) -> int:
        self.turns += 1
        self.cards.append(card)
        return len(self.cards)

    async def note(self, number: int, text: str) -> Card:
        self.turns += 1
        self.cards[number].notes.append(text)
        return self.cards[number]

    async def remember(self, name: str, value: Any) -> Any:
        self.turns += 1
        self.seen[name] = value
        return value

    @read_only
    async def everything(self) -> tuple[list[Card], dict[str, Any], int]:
        return self.cards, self.seen, self.turns

    async def fail(self, why: str) -> None:
        self.turns += 1
        raise ValueError(why)


@grain(kind="player")
class Player(Grain):
    """Plays the script from inside of the cluster."""

    async def play(self, table: str) -> list[str]:
        return await script(self.grain(Table, table), nothing)


async def nothing() -> None:
    """Between two steps nothing happens."""


VALUES: dict[str, object] = {
    "tuple": (1, (2, [3])),
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "big": -(2**100),
    "bytes": b"\0\xff",
    "when": datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
    "id": uuid.UUID(int=7),
    "exact": decimal.Decimal("1.10"),
    "enum": Suit.SPADES,
    "nested": {"cards": [Card(Suit.HEARTS, 3)], (1, 2): None},
}


async def script(table: Table, between: Callable[[], Awaitable[None]]) -> list[str]:
    """One caller's steps, and all that it gets to see."""
    said: list[str] = []
    card = Card(Suit.HEARTS, 1)
    for rank in range(3):
        said.append(repr(await table.deal(Card(Suit.SPADES, rank))))
        await between()
    said.append(repr(await table.deal(card)))
    card.notes.append("changed by the caller afterwards")
    await between()
    given = await table.note(3, "by the table")
    given.notes.append("changed by the caller")
    said.append(repr(given))
    for name, value in VALUES.items():
        echoed = await table.remember(name, value)
        said.append(f"{name}: {type(echoed).__name__} {echoed == value}")
        await between()
    try:
        await table.fail("no more cards")
    except ValueError as error:
        said.append(f"{type(error).__name__}: {error}")
    said.append(repr(sorted((await table.everything())[1])))
    cards, _, turns = await table.everything()
    said.append(f"{cards} {turns}")
    return said


EXPECTED_TURNS = 3 + 1 + 1 + len(VALUES) + 1


async def test_a_script_gives_the_same_result_from_outside_from_the_same_silo_and_from_another_one(
    cluster: Cluster,
) -> None:
    await cluster.start("a", "b", kinds=(Table, Player))
    client = await cluster.client()
    for silo in ("a", "b"):
        await with_hint(client.grain(Table, f"at {silo}"), silo).everything()
    player = with_hint(client.grain(Player, "p"), "a")
    outside = await script(client.grain(Table, "k"), nothing)
    assert outside[-1].endswith(f" {EXPECTED_TURNS}")
    assert await player.play("at a") == outside
    assert await player.play("at b") == outside
    assert cluster.home(client.grain(Table, "at a")) == cluster.home(player) == "a"
    assert cluster.home(client.grain(Table, "at b")) == "b"


async def test_a_script_gives_the_same_result_with_a_move_between_any_two_steps(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Table,))
    client = await cluster.client()
    still = await script(client.grain(Table, "still"), nothing)
    moved = client.grain(Table, "moved")
    moves = 0

    async def between() -> None:
        nonlocal moves
        moves += 1
        assert (await client.migrate(moved, to=cluster.elsewhere(moved))).moved

    assert await script(moved, between) == still
    assert moves > 10


async def test_a_script_gives_the_same_result_while_the_grain_is_moved_about_all_the_time(cluster: Cluster) -> None:
    await cluster.start("a", "b", "c", kinds=(Table,))
    client = await cluster.client()
    still = await script(client.grain(Table, "still"), nothing)
    moving = client.grain(Table, "moving")
    await with_hint(moving, "a").everything()
    goes_on = True
    moves = 0

    async def move() -> None:
        nonlocal moves
        while goes_on:
            outcome = await client.migrate(moving)
            assert outcome.moved, outcome
            moves += 1

    mover = asyncio.create_task(move())
    scripted: list[list[str]] = []
    while moves < 5:
        scripted.append(await script(moving, nothing))
    goes_on = False
    await mover
    assert scripted[0] == still
    _, _, turns = await moving.everything()
    assert turns == EXPECTED_TURNS * len(scripted)
