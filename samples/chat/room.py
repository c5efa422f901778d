"""A chat room: it remembers what was said, and takes that along when it moves."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from silo import Grain, MigrationNotice, always_interleave, grain, soft_state

READ_WAITS_S = 2.0
"""How long a reader waits for news before it gets an empty page and asks again."""
READ_WAITS_WHILE_MOVING_S = 0.02
"""The same in a room that is about to move, since the move waits for calls that run."""


@dataclass(frozen=True)
class Line:
    """What somebody said; lines are numbered from 1 on."""

    number: int
    who: str
    text: str


@dataclass(frozen=True)
class Page:
    """The lines after those that a reader has, and where the room was when it gave them out."""

    lines: list[Line]
    silo: str


@grain(kind="chat.room")
class Room(Grain):
    """Anyone may say something; readers ask for what comes after the last line that they have."""

    lines: list[Line] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self._news = asyncio.Event()  # of this activation, like all that is not soft state: it does not travel
        self._patience_s = READ_WAITS_S

    async def say(self, who: str, text: str) -> int:
        self.lines.append(Line(len(self.lines) + 1, who, text))
        self._patience_s = READ_WAITS_S
        self._wake_readers()
        return len(self.lines)

    @always_interleave  # a reader that waits holds up nobody who has something to say
    async def read(self, after: int) -> Page:
        if len(self.lines) <= after:
            # Without news, the empty page tells the reader that the room is still there.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._patience_s)
        return Page(self.lines[after:], self.silo)

    async def on_migrating(self, notice: MigrationNotice) -> None:
        self._patience_s = READ_WAITS_WHILE_MOVING_S
        self._wake_readers()  # they read on at the new place

    def _wake_readers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
