"""Three people in one room, which moves while they talk."""

from __future__ import annotations

import asyncio

from samples.chat.room import Line, Room
from silo import Client

BREATH_S = 0.25
"""Between two lines."""
SCRIPT = (
    ("ada", "Is anyone here?"),
    ("grace", "I am. Which machine are we on?"),
    ("ada", "I would not know. A room has a name, not a place."),
    ("edsger", "Then it could move while I finish this"),
    ("edsger", "sentence, and nobody would"),
    ("edsger", "notice."),
    ("grace", "The silo in brackets has changed. Did we lose anything?"),
    ("ada", "The lines are numbered: look."),
    ("edsger", "Not one is missing, and none came twice."),
)
MOVE_BEFORE = 4
"""The index of the line during which the room is moved for the first time; it goes on moving for two more."""
MOVES = 3


async def main(client: Client) -> None:
    """Let them talk, move the room meanwhile, and see that a reader has missed nothing."""
    room = client.grain(Room, "lobby")
    reader = asyncio.create_task(read_all(room, len(SCRIPT)))
    for index, (who, text) in enumerate(SCRIPT):
        if MOVE_BEFORE <= index < MOVE_BEFORE + MOVES:
            # The line is said while the room moves: it waits for the move, and goes where the room went.
            _, moved = await asyncio.gather(room.say(who, text), client.migrate(room))
            print(f"           -- {moved}")
            assert moved.moved, moved
        else:
            await room.say(who, text)
        await asyncio.sleep(BREATH_S)
    heard = await reader
    expected = [Line(number, who, text) for number, (who, text) in enumerate(SCRIPT, start=1)]
    assert heard == expected, f"the reader heard {heard}"
    print(f"the reader heard all {len(heard)} lines, each once and in order")


async def read_all(room: Room, count: int) -> list[Line]:
    """Read on, wherever the room is, until so many lines have come."""
    heard: list[Line] = []
    while len(heard) < count:
        page = await room.read(len(heard))
        for line in page.lines:
            print(f"[{page.silo}] {line.number:>2}  {line.who + ':':<8}{line.text}")
        heard += page.lines
    return heard
